#include "fabric/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "fabric/http/internal/http_connection.h"
#include "fabric/net/io_threads.h"

namespace ems::fabric {
namespace {

using internal::HttpConnection;
using internal::HttpShared;

constexpr uint32_t kIoThreadsMax = 64;

}  // namespace

struct HttpServer::Impl {
  HttpShared shared;
  std::optional<IoThreads> io;
  std::string address;

  Status Start();
  void Adopt(StreamSocket socket, IoThread* thread);
  void Refuse(int socket) const;
  void Stop(Duration patience);
};

Status HttpServer::Impl::Start() {
  io.emplace(IoThreads::Options{
      .name = "ems-http",
      .threads = std::clamp(shared.options.io_threads, 1u, kIoThreadsMax),
      .connections_max = shared.options.connections_max,
      .adopt = [this](StreamSocket socket, IoThread* thread) { Adopt(std::move(socket), thread); },
      .refuse = [this](int socket) { Refuse(socket); }});
  shared.in_hand = io->in_hand();
  EMS_ASSIGN_OR_RETURN(address, io->ListenTcp(shared.options.listen));
  io->Run();
  return OkStatus();
}

void HttpServer::Impl::Adopt(StreamSocket socket, IoThread* thread) {
  const int on = 1;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const auto connection = std::make_shared<HttpConnection>(std::move(socket), &shared);
  connection->Start([thread, at = thread->Keep(connection)] { thread->LetGo(at); });
}

void HttpServer::Impl::Refuse(int socket) const {
  shared.metrics.refused.Add();
  constexpr std::string_view kWhy = "too many connections";
  HttpReply reply{.status = 503, .content_type = "text/plain", .headers = {}, .body = ""};
  if (shared.options.refusal) reply = shared.options.refusal(503, std::string(kWhy));
  const std::string text = HttpHead(reply, reply.body.size(), false, false) + reply.body;
  ::send(socket, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // What has come already is read, so that closing does not take the answer back.
  ::shutdown(socket, SHUT_WR);
  char sink[4096];
  while (::recv(socket, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
  }
}

void HttpServer::Impl::Stop(Duration patience) {
  shared.stopping.store(true, std::memory_order_release);
  if (io) io->Stop(patience);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { impl_->Stop(Duration::zero()); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      HttpHandler handler,
                                                      const HttpMetrics& metrics) {
  EMS_CHECK(handler != nullptr);
  auto impl = std::make_unique<Impl>();
  impl->shared.options = options;
  impl->shared.handler = std::move(handler);
  impl->shared.metrics = metrics;
  EMS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address; }

void HttpServer::Stop(Duration patience) { impl_->Stop(patience); }

}  // namespace ems::fabric
