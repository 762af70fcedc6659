#include "fabric/http_server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "common/thread_pool.h"
#include "fabric/internal/http_connection.h"
#include "fabric/socket.h"

namespace ems::fabric {
namespace {

using internal::HttpConnection;
using internal::HttpShared;

constexpr Duration kSweepEvery = std::chrono::milliseconds(50);
constexpr Duration kAcceptPause = std::chrono::milliseconds(20);
constexpr uint32_t kIoThreadsMax = 64;

// One "ems-http-N" thread: an io_context and the connections that live on it.
struct HttpThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer sweep{context};
  std::list<std::shared_ptr<HttpConnection>> connections;  // touched on this thread only
  Thread thread;

  void Sweep() {
    sweep.expires_after(kSweepEvery);
    sweep.async_wait([this](asio::error_code error) {
      if (error) return;
      const TimePoint now = Clock::System().Now();
      for (const auto& connection : connections) connection->CheckDeadline(now);
      connections.remove_if([](const auto& connection) { return connection->closed(); });
      Sweep();
    });
  }
};

void SetTcpOptions(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

// The head of an answer, up to and with the empty line. `length` nullopt: chunked, or up to the
// connection's end.
std::string MakeHead(const HttpReply& reply, std::optional<size_t> length, bool chunked,
                     bool keep_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", reply.status,
                                 HttpReason(reply.status), reply.content_type);
  if (length) head += fmt::format("Content-Length: {}\r\n", *length);
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

}  // namespace

HttpExchange::HttpExchange(HttpRequest request, size_t unsent_bytes_max,
                           internal::HttpConnection* connection)
    : request_(std::move(request)), unsent_bytes_max_(unsent_bytes_max) {
  auto state = state_.Lock();
  state->connection = connection;
}

HttpExchange::~HttpExchange() = default;

void HttpExchange::Wake(State* state) {
  if (state->wake_posted || state->connection == nullptr) return;
  state->wake_posted = true;
  state->connection->PostWake();
}

std::string HttpExchange::Head(const HttpReply& reply, bool stream) const {
  const bool chunked = stream && !request_.http_1_0;
  const std::optional<size_t> length =
      stream ? std::nullopt : std::optional<size_t>(reply.body.size());
  return MakeHead(reply, length, chunked, request_.keep_alive);
}

// One chunk of a stream.
void HttpExchange::Append(State* state, std::string_view bytes) const {
  if (bytes.empty() || request_.method == "HEAD") return;  // an empty chunk would be the end
  if (request_.http_1_0) {
    state->unsent += bytes;
  } else {
    state->unsent += fmt::format("{:x}\r\n", bytes.size());
    state->unsent.append(bytes).append("\r\n");
  }
}

bool HttpExchange::Reply(const HttpReply& reply) {
  const std::string head = Head(reply, false);
  auto state = state_.Lock();
  if (state->phase != Phase::kWaiting) return false;
  state->phase = Phase::kEnded;
  state->unsent += head;
  if (request_.method != "HEAD") state->unsent += reply.body;
  Wake(&*state);
  return true;
}

bool HttpExchange::StartStream(const HttpReply& reply) {
  const std::string head = Head(reply, true);
  auto state = state_.Lock();
  if (state->phase != Phase::kWaiting) return false;
  state->phase = Phase::kStreaming;
  state->unsent += head;
  Append(&*state, reply.body);
  Wake(&*state);
  return true;
}

bool HttpExchange::Write(std::string_view bytes) {
  auto state = state_.Lock();
  if (state->phase != Phase::kStreaming || state->abort) return false;
  if (state->unsent.size() + state->in_flight + bytes.size() > unsent_bytes_max_) {
    state->abort = true;
  } else {
    Append(&*state, bytes);
  }
  Wake(&*state);
  return !state->abort;
}

bool HttpExchange::Finish() {
  auto state = state_.Lock();
  if (state->phase != Phase::kStreaming || state->abort) return false;
  state->phase = Phase::kEnded;
  if (!request_.http_1_0 && request_.method != "HEAD") state->unsent += "0\r\n\r\n";
  Wake(&*state);
  return true;
}

void HttpExchange::Abort() {
  auto state = state_.Lock();
  if (state->connection == nullptr) return;
  state->abort = true;
  Wake(&*state);
}

void HttpExchange::OnGone(std::function<void()> callback) {
  {
    auto state = state_.Lock();
    if (state->phase != Phase::kGone) {
      if (state->connection != nullptr) state->on_gone.swap(callback);
      return;  // the lock ends before the callback that was there
    }
  }
  callback();
}

void HttpExchange::OnDeadline(TimePoint at, std::function<void()> callback) {
  auto state = state_.Lock();
  if (state->connection == nullptr) return;
  state->deadline = at;
  state->on_deadline.swap(callback);
}

struct HttpServer::Impl {
  HttpShared shared;
  std::vector<std::unique_ptr<HttpThread>> threads;
  std::optional<asio::ip::tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> accept_pause;
  std::string address;
  size_t next_thread = 0;
  Fd reserve;  // closed to have a descriptor for saying no when there are no others
  bool stopped = false;

  Status Bind();
  void Run();
  void Accept();
  void OnAccept(HttpThread* thread, asio::error_code error, asio::ip::tcp::socket socket);
  void RefuseWithReserve();
  void RefuseConnection(int fd) const;
  void Stop(Duration patience);
};

Status HttpServer::Impl::Bind() {
  const std::string& listen = shared.options.listen;
  EMS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(listen));
  if (parsed.is_unix()) {
    return Error(StatusCode::kInvalidArgument, "listen \"{}\": a host:port is needed", listen);
  }
  const uint32_t count = std::clamp(shared.options.io_threads, 1u, kIoThreadsMax);
  for (uint32_t i = 0; i < count; ++i) threads.push_back(std::make_unique<HttpThread>());
  asio::io_context& context = threads[0]->context;
  asio::error_code error;
  const auto found = asio::ip::tcp::resolver(context).resolve(
      parsed.host, std::to_string(parsed.port), asio::ip::resolver_base::passive, error);
  if (error || found.empty()) {
    return Error(StatusCode::kUnavailable, "listen \"{}\": {}", listen, error.message());
  }
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.emplace(context);
  accept_pause.emplace(context);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error(StatusCode::kUnavailable, "cannot listen on {}: {}", listen, error.message());
  }
  address = FormatHostPort(parsed.host, acceptor->local_endpoint().port());
  reserve = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return OkStatus();
}

void HttpServer::Impl::Run() {
  Accept();
  for (size_t i = 0; i < threads.size(); ++i) {
    HttpThread* const thread = threads[i].get();
    thread->Sweep();
    thread->thread = Thread("ems-http-" + std::to_string(i), [thread] { thread->context.run(); });
  }
}

void HttpServer::Impl::Accept() {
  HttpThread* const thread = threads[next_thread++ % threads.size()].get();
  acceptor->async_accept(thread->context,
                         [this, thread](asio::error_code error, asio::ip::tcp::socket socket) {
                           OnAccept(thread, error, std::move(socket));
                         });
}

void HttpServer::Impl::OnAccept(HttpThread* thread, asio::error_code error,
                                asio::ip::tcp::socket socket) {
  if (error == asio::error::operation_aborted || !acceptor->is_open()) return;
  if (error) {  // out of descriptors or memory
    RefuseWithReserve();
    accept_pause->expires_after(kAcceptPause);
    accept_pause->async_wait([this](asio::error_code stopped_early) {
      if (!stopped_early) Accept();
    });
    return;
  }
  if (shared.connections.load(std::memory_order_relaxed) >= shared.options.connections_max) {
    shared.metrics.refused.Add();
    RefuseConnection(socket.native_handle());
  } else {
    SetTcpOptions(socket.native_handle());
    shared.connections.fetch_add(1, std::memory_order_relaxed);
    asio::post(thread->context, [this, thread, taken = std::move(socket)]() mutable {
      auto connection = std::make_shared<HttpConnection>(std::move(taken), &shared);
      thread->connections.push_back(connection);
      connection->Start();
    });
  }
  Accept();
}

void HttpServer::Impl::RefuseConnection(int fd) const {
  constexpr std::string_view kWhy = "too many connections";
  HttpReply reply{.status = 503, .content_type = "text/plain", .headers = {}, .body = ""};
  if (shared.options.refusal) reply = shared.options.refusal(503, std::string(kWhy));
  const std::string text = MakeHead(reply, reply.body.size(), false, false) + reply.body;
  ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  // What has come already is read, so that closing does not take the answer back.
  ::shutdown(fd, SHUT_WR);
  char sink[4096];
  while (::recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
  }
}

void HttpServer::Impl::RefuseWithReserve() {
  shared.metrics.refused.Add();
  reserve.Close();
  const int fd =
      ::accept4(acceptor->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    RefuseConnection(fd);
    ::close(fd);
  }
  reserve = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void HttpServer::Impl::Stop(Duration patience) {
  if (std::exchange(stopped, true)) return;
  shared.stopping.store(true, std::memory_order_release);
  asio::post(threads[0]->context, [this] {
    asio::error_code ignored;
    acceptor->close(ignored);
    accept_pause->cancel();
  });
  for (const auto& thread : threads) {
    asio::post(thread->context, [one = thread.get()] {
      for (const auto& connection : one->connections) connection->CloseIdle();
    });
  }
  const Deadline deadline = Deadline::After(patience);
  StopFlag never;
  while (shared.in_hand.load(std::memory_order_acquire) > 0 && !deadline.Passed()) {
    never.WaitFor(std::chrono::milliseconds(2));
  }
  for (const auto& thread : threads) thread->context.stop();
  for (const auto& thread : threads) thread->thread.Join();
  // Nobody runs the contexts any more: what is left is closed, and told, from here.
  for (const auto& thread : threads) {
    for (const auto& connection : thread->connections) connection->Close();
    thread->connections.clear();
  }
  acceptor.reset();  // they belong to the first context
  accept_pause.reset();
  threads.clear();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { impl_->Stop(Duration::zero()); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      HttpHandler handler,
                                                      const HttpMetrics& metrics) {
  auto impl = std::make_unique<Impl>();
  impl->shared.options = options;
  impl->shared.handler = std::move(handler);
  impl->shared.metrics = metrics;
  EMS_RETURN_IF_ERROR(impl->Bind());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address; }

void HttpServer::Stop(Duration patience) { impl_->Stop(patience); }

}  // namespace ems::fabric
