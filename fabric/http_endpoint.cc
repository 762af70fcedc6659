#include "fabric/http_endpoint.h"

#include <httplib.h>

#include <utility>

#include "common/thread_pool.h"
#include "fabric/socket.h"

namespace ems::fabric {
namespace {

constexpr size_t kThreads = 2;
constexpr size_t kQueueMax = 64;
constexpr Duration kQueuePause = std::chrono::milliseconds(5);

// httplib's own pool queues without bound; ours makes the accepting thread wait while the queue is
// full.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  BoundedQueue() : pool_(std::make_unique<ThreadPool>("ems-http", kThreads, kQueueMax)) {}
  void enqueue(std::function<void()> task) override {
    // NOLINTNEXTLINE(bugprone-use-after-move): what is refused was not moved
    while (!pool_->TrySubmit(std::move(task))) pause_.WaitFor(kQueuePause);
  }
  void shutdown() override { pool_.reset(); }

 private:
  std::unique_ptr<ThreadPool> pool_;
  StopFlag pause_;
};

void Answer(const std::function<Status()>& check, httplib::Response* response) {
  const Status status = check();
  response->status = status.ok() ? 200 : 503;
  response->set_content(status.ok() ? "ok\n" : ToString(status) + "\n", "text/plain");
}

}  // namespace

struct HttpEndpoint::Impl {
  httplib::Server server;
  std::string address;
  int port = 0;
  Thread thread;
};

HttpEndpoint::HttpEndpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpEndpoint::~HttpEndpoint() {
  impl_->server.stop();
  impl_->thread.Join();
}

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& listen,
                                                          const MetricsRegistry* metrics,
                                                          std::function<Status()> healthy,
                                                          std::function<Status()> ready,
                                                          std::function<void()> before_render,
                                                          const std::vector<PostPage>& posts) {
  EMS_ASSIGN_OR_RETURN(const Address address, ParseAddress(listen));
  auto impl = std::make_unique<Impl>();
  httplib::Server& server = impl->server;
  server.new_task_queue = [] { return new BoundedQueue(); };  // httplib takes ownership
  server.set_payload_max_length(8 * kKiB);
  server.set_read_timeout(2);
  server.set_write_timeout(2);
  server.set_keep_alive_max_count(1);
  // httplib's own choice is SO_REUSEPORT, with which two daemons would share a port unnoticed.
  server.set_socket_options([](int socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  server.Get("/metrics",
             [metrics, before_render](const httplib::Request&, httplib::Response& response) {
               if (before_render) before_render();
               response.set_content(metrics->Render(), "text/plain; version=0.0.4");
             });
  server.Get("/healthz", [healthy](const httplib::Request&, httplib::Response& response) {
    Answer(healthy, &response);
  });
  server.Get("/readyz", [ready](const httplib::Request&, httplib::Response& response) {
    Answer(ready, &response);
  });
  for (const PostPage& page : posts) {
    server.Post(page.path, [take = page.take](const httplib::Request& request,
                                              httplib::Response& response) {
      const Status status = take(request.body);
      response.status = status.ok() ? 200 : 400;
      response.set_content(status.ok() ? "ok\n" : ToString(status) + "\n", "text/plain");
    });
  }
  impl->port = address.port == 0
                   ? server.bind_to_any_port(address.host.c_str())
                   : (server.bind_to_port(address.host.c_str(), address.port) ? address.port : -1);
  if (impl->port < 0) {
    return Error(StatusCode::kUnavailable, "cannot listen on {} (http): in use or not allowed",
                 listen);
  }
  impl->address = FormatHostPort(address.host, static_cast<uint16_t>(impl->port));
  impl->thread = Thread("ems-http", [&server] { server.listen_after_bind(); });
  for (StopFlag pause; !server.is_running();) pause.WaitFor(std::chrono::milliseconds(1));
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(impl)));
}

int HttpEndpoint::port() const { return impl_->port; }
const std::string& HttpEndpoint::address() const { return impl_->address; }

}  // namespace ems::fabric
