#include "fabric/rpc_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <list>
#include <optional>
#include <thread>

#include "common/check.h"
#include "common/logging.h"
#include "common/thread_pool.h"
#include "fabric/internal/rpc_connection.h"
#include "fabric/socket.h"

namespace ems::fabric {
namespace {

using internal::RpcConnection;
using internal::StreamSocket;
using internal::Vigil;
using TcpAcceptor = asio::ip::tcp::acceptor;
using UnixAcceptor = asio::local::stream_protocol::acceptor;

constexpr Duration kSweepEvery = std::chrono::milliseconds(100);
constexpr Duration kAcceptPause = std::chrono::milliseconds(20);
constexpr uint32_t kIoThreadsAutoMax = 8;

// One "ems-io" thread: an io_context and the connections that live on it.
struct IoThread {
  Vigil vigil;  // touched on this thread only; before the context, whose connections use it
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::list<std::shared_ptr<RpcConnection>> connections;  // touched on this thread only
  Thread thread;

  void Run() {
    while (!context.stopped()) {
      if (vigil.IsOn(Clock::System().Now())) {
        context.poll();
      } else {
        context.run_one();
      }
    }
  }
};

asio::awaitable<void> SweepDeadlines(IoThread* io) {
  asio::steady_timer timer(io->context);
  while (true) {
    timer.expires_after(kSweepEvery);
    asio::error_code error;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const TimePoint now = Clock::System().Now();
    for (const auto& connection : io->connections) connection->CheckDeadline(now);
  }
}

void SetTcpOptions(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const int keep_idle_s = 10;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_idle_s, sizeof(keep_idle_s));
  const int keep_interval_s = 5;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_interval_s, sizeof(keep_interval_s));
  const int keep_count = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keep_count, sizeof(keep_count));
  const unsigned user_timeout_ms = 10'000;
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms));
}

// Sends "too many connections" as an answer frame and closes.
void RefuseConnection(int fd) {
  wire::FrameHeader header;
  header.op = wire::Op::kHello;
  header.status = wire::WireStatus::kRetryLater;
  header.retry_ms = 1000;
  constexpr std::string_view kText =
      "too many connections: see connections_max and the limit of descriptors";
  header.body_bytes = kText.size();
  wire::Seal(&header);
  ::send(fd, &header, sizeof(header), MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
  ::send(fd, kText.data(), kText.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

struct RpcServer::Impl {
  RpcServerOptions options;
  SessionFactory* factory = nullptr;
  RpcMetrics metrics;
  std::vector<std::unique_ptr<IoThread>> io;
  std::optional<TcpAcceptor> tcp;
  std::optional<UnixAcceptor> unix_acceptor;
  std::string address;
  std::atomic<uint32_t> connection_count{0};
  std::atomic<int> busy{0};
  std::atomic<size_t> next_io{0};
  Fd reserve;  // closed to have a descriptor for saying no when there are no others
  bool stopped = false;

  Status Bind();
  Status BindTcp();
  Status BindUnix();
  void Run();
  void Adopt(StreamSocket socket, IoThread* thread);
  template <typename Acceptor>
  asio::awaitable<void> Accept(Acceptor* acceptor);
  template <typename Acceptor>
  void RefuseWithReserve(Acceptor* acceptor);
  void Stop(Duration patience);
};

Status RpcServer::Impl::BindTcp() {
  EMS_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(options.listen));
  if (parsed.is_unix()) {
    return Error(StatusCode::kInvalidArgument, "listen \"{}\": a host:port is needed",
                 options.listen);
  }
  asio::error_code error;
  asio::ip::tcp::resolver resolver(io[0]->context);
  const auto found = resolver.resolve(parsed.host, std::to_string(parsed.port),
                                      asio::ip::resolver_base::passive, error);
  if (error || found.empty()) {
    return Error(StatusCode::kUnavailable, "listen \"{}\": {}", options.listen, error.message());
  }
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  tcp.emplace(io[0]->context);
  tcp->open(endpoint.protocol(), error);
  if (!error) tcp->set_option(asio::socket_base::reuse_address(true), error);
  if (!error) tcp->bind(endpoint, error);
  if (!error) tcp->listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return Error(StatusCode::kUnavailable, "cannot listen on {}: {}", options.listen,
                 error.message());
  address = FormatHostPort(parsed.host, tcp->local_endpoint().port());
  return OkStatus();
}

Status RpcServer::Impl::BindUnix() {
  const std::string& path = options.unix_path;
  // A path left by a dead process is taken over; a living one, or a file that is no socket, is not.
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return Error(StatusCode::kInvalidArgument, "unix_path {} exists and is not a socket", path);
    }
    if (Connect(Address{.host = {}, .port = 0, .unix_path = path}, std::chrono::milliseconds(100))
            .ok()) {
      return Error(StatusCode::kUnavailable, "unix_path {}: another process is serving there",
                   path);
    }
    ::unlink(path.c_str());
  }
  asio::error_code error;
  unix_acceptor.emplace(io[0]->context);
  unix_acceptor->open(asio::local::stream_protocol(), error);
  if (path.size() > 107) error = asio::error::name_too_long;
  if (!error) unix_acceptor->bind(asio::local::stream_protocol::endpoint(path), error);
  if (!error && ::chmod(path.c_str(), options.unix_mode) != 0)
    error = asio::error_code(errno, asio::error::get_system_category());
  if (!error) unix_acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return Error(StatusCode::kUnavailable, "cannot listen on {}: {}", path, error.message());
  return OkStatus();
}

Status RpcServer::Impl::Bind() {
  uint32_t threads = options.io_threads;
  if (threads == 0)
    threads = std::clamp(std::thread::hardware_concurrency(), 1u, kIoThreadsAutoMax);
  for (uint32_t i = 0; i < threads; ++i) io.push_back(std::make_unique<IoThread>());
  if (!options.listen.empty()) EMS_RETURN_IF_ERROR(BindTcp());
  if (!options.unix_path.empty()) EMS_RETURN_IF_ERROR(BindUnix());
  reserve = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return OkStatus();
}

void RpcServer::Impl::Run() {
  if (tcp) asio::co_spawn(io[0]->context, Accept(&*tcp), asio::detached);
  if (unix_acceptor) asio::co_spawn(io[0]->context, Accept(&*unix_acceptor), asio::detached);
  for (size_t i = 0; i < io.size(); ++i) {
    asio::co_spawn(io[i]->context, SweepDeadlines(io[i].get()), asio::detached);
    io[i]->thread = Thread("ems-io-" + std::to_string(i), [one = io[i].get()] { one->Run(); });
  }
}

template <typename Acceptor>
void RpcServer::Impl::RefuseWithReserve(Acceptor* acceptor) {
  metrics.refused.Add();
  reserve.Close();
  const int fd =
      ::accept4(acceptor->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    RefuseConnection(fd);
    ::close(fd);
  }
  reserve = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

template <typename Acceptor>
asio::awaitable<void> RpcServer::Impl::Accept(Acceptor* acceptor) {
  asio::steady_timer pause(io[0]->context);
  while (true) {
    IoThread* const thread = io[next_io.fetch_add(1, std::memory_order_relaxed) % io.size()].get();
    asio::error_code error;
    auto accepted = co_await acceptor->async_accept(
        thread->context, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {  // out of descriptors or memory
      RefuseWithReserve(acceptor);
      pause.expires_after(kAcceptPause);
      asio::error_code stopped_early;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, stopped_early));
      continue;
    }
    if (connection_count.load(std::memory_order_relaxed) >= options.connections_max) {
      metrics.refused.Add();
      RefuseConnection(accepted.native_handle());
      continue;
    }
    if constexpr (std::is_same_v<Acceptor, TcpAcceptor>) SetTcpOptions(accepted.native_handle());
    metrics.accepted.Add();
    connection_count.fetch_add(1, std::memory_order_relaxed);
    asio::post(thread->context,
               [this, thread, socket = StreamSocket(std::move(accepted))]() mutable {
                 Adopt(std::move(socket), thread);
               });
  }
}

void RpcServer::Impl::Adopt(StreamSocket socket, IoThread* thread) {
  auto connection = std::make_shared<RpcConnection>(std::move(socket), options, metrics,
                                                    factory->NewSession(), &busy, &thread->vigil);
  thread->connections.push_front(connection);
  const auto at = thread->connections.begin();
  asio::co_spawn(thread->context, connection->Run(),
                 [this, thread, at](const std::exception_ptr& failure) {
                   if (failure != nullptr) {  // out of memory: this connection's loss alone
                     metrics.refused.Add();
                     EMS_LOG(kError, "fabric", "a connection ended: out of memory");
                   }
                   thread->connections.erase(at);
                   connection_count.fetch_sub(1, std::memory_order_relaxed);
                 });
}

void RpcServer::Impl::Stop(Duration patience) {
  if (std::exchange(stopped, true)) return;
  asio::post(io[0]->context, [this] {
    asio::error_code ignored;
    if (tcp) tcp->close(ignored);
    if (unix_acceptor) unix_acceptor->close(ignored);
  });
  if (!options.unix_path.empty()) ::unlink(options.unix_path.c_str());
  const Deadline deadline = Deadline::After(patience);
  StopFlag never;
  while (busy.load(std::memory_order_acquire) > 0 && !deadline.Passed()) {
    never.WaitFor(std::chrono::milliseconds(2));
  }
  for (const auto& thread : io) thread->context.stop();
  for (const auto& thread : io) thread->thread.Join();
  // Coroutines die with their io_context; sessions release what they pin. Connections go first:
  // they belong to the context.
  for (const auto& thread : io) {
    for (const auto& connection : thread->connections) connection->IgnoreWakes();
    thread->connections.clear();
  }
  tcp.reset();  // they belong to the first context
  unix_acceptor.reset();
  io.clear();
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RpcServer::~RpcServer() { impl_->Stop(Duration::zero()); }

Result<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                    SessionFactory* factory,
                                                    const RpcMetrics& metrics) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->factory = factory;
  impl->metrics = metrics;
  const Status bound = impl->Bind();
  if (!bound.ok()) return bound;
  impl->Run();
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

const std::string& RpcServer::address() const { return impl_->address; }
const std::string& RpcServer::unix_path() const { return impl_->options.unix_path; }

void RpcServer::Stop(Duration patience) { impl_->Stop(patience); }

}  // namespace ems::fabric
