#include "fabric/rpc/rpc_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "fabric/net/io_threads.h"
#include "fabric/rpc/internal/rpc_connection.h"

namespace ems::fabric {
namespace {

using internal::RpcConnection;

constexpr uint32_t kIoThreadsAutoMax = 8;

// Of one peer: a quarter is left to others, whatever it does with its connections.
constexpr uint32_t PeerConnectionsMax(uint32_t connections_max) {
  return connections_max - connections_max / 4;
}

// A Unix socket has none of these options: it refuses them.
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
      "too many connections, in all or of this peer: see connections_max and the limit of "
      "descriptors";
  header.body_bytes = kText.size();
  wire::SealAnswer(header, AsBytes(kText), &header);
  ::send(fd, &header, sizeof(header), MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
  ::send(fd, kText.data(), kText.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

struct RpcServer::Impl {
  RpcServerOptions options;
  SessionFactory* factory = nullptr;
  RpcMetrics metrics;
  std::string address;
  std::optional<IoThreads> io;

  Status Start();
  void Adopt(StreamSocket socket, IoThread* thread);
};

Status RpcServer::Impl::Start() {
  const uint32_t automatic = std::clamp(std::thread::hardware_concurrency(), 1u, kIoThreadsAutoMax);
  io.emplace(IoThreads::Options{
      .name = "ems-io",
      .threads = options.io_threads == 0 ? automatic : options.io_threads,
      .connections_max = options.connections_max,
      .peer_connections_max = PeerConnectionsMax(options.connections_max),
      .adopt = [this](StreamSocket socket, IoThread* thread) { Adopt(std::move(socket), thread); },
      .refuse =
          [this](int socket) {
            metrics.refused.Add();
            RefuseConnection(socket);
          }});
  if (!options.listen.empty()) {
    EMS_ASSIGN_OR_RETURN(address, io->ListenTcp(options.listen));
  }
  if (!options.unix_path.empty()) {
    EMS_RETURN_IF_ERROR(io->ListenUnix(options.unix_path, options.unix_mode));
  }
  io->Run();
  return OkStatus();
}

void RpcServer::Impl::Adopt(StreamSocket socket, IoThread* thread) {
  SetTcpOptions(socket.native_handle());
  metrics.accepted.Add();
  const auto connection =
      std::make_shared<RpcConnection>(std::move(socket), options, metrics, factory->NewSession(),
                                      io->in_hand(), thread->busy_poll(), thread->turns());
  asio::co_spawn(thread->context(), connection->Run(),
                 [this, thread, at = thread->Keep(connection)](const std::exception_ptr& failure) {
                   if (failure != nullptr) {  // out of memory: this connection's loss alone
                     metrics.refused.Add();
                     EMS_LOG(kError, "fabric", "a connection ended: out of memory");
                   }
                   thread->LetGo(at);
                 });
}

RpcServer::RpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RpcServer::~RpcServer() = default;

Result<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                    SessionFactory* factory,
                                                    const RpcMetrics& metrics) {
  EMS_CHECK(factory != nullptr);
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->factory = factory;
  impl->metrics = metrics;
  EMS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<RpcServer>(new RpcServer(std::move(impl)));
}

const std::string& RpcServer::address() const { return impl_->address; }
const std::string& RpcServer::unix_path() const { return impl_->options.unix_path; }

void RpcServer::Stop(Duration patience) { impl_->io->Stop(patience); }

}  // namespace ems::fabric
