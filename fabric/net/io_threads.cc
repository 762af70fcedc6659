#include "fabric/net/io_threads.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "common/checksum.h"

namespace ems::fabric {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(20);
constexpr int kAcceptsMax = 64;  // before others have their turn

Fd OpenReserve() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

int AcceptOne(int listener) {
  return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

// Of the peer of a socket: its address without the port, or its process where that is of this host.
uint64_t PeerOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return Checksum(
        std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, 1)));
  if (address.ss_family == AF_INET6)
    return Checksum(
        std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr, 1)));
  ucred process{};
  size = sizeof(process);
  (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &size);
  return static_cast<uint64_t>(process.pid);
}

}  // namespace

IoThread::At IoThread::Keep(std::shared_ptr<IoConnection> connection) {
  return connections_.insert(connections_.end(), {std::move(connection), adopting_});
}

void IoThread::LetGo(At at) {
  Uncount();
  connections_.erase(at);
}

void IoThread::Count() {
  count_.fetch_add(1, std::memory_order_relaxed);
  all_.fetch_add(1, std::memory_order_relaxed);
}

void IoThread::Uncount() {
  const uint32_t before = count_.fetch_sub(1, std::memory_order_relaxed);
  EMS_CHECK(before > 0, "a connection was released twice");
  all_.fetch_sub(1, std::memory_order_relaxed);
}

void IoThread::ForEach(const std::function<void(IoConnection&)>& deed) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const std::shared_ptr<IoConnection> connection = (at++)->connection;
    deed(*connection);
  }
}

void IoThread::MakeRoom(TimePoint now) {
  struct Idle {
    size_t count = 0;
    TimePoint longest = TimePoint::max();
    std::shared_ptr<IoConnection> connection;
  };
  std::unordered_map<uint64_t, Idle> peers;
  const Idle* most = nullptr;
  for (const Kept& kept : connections_) {
    const TimePoint since = kept.connection->idle_since();
    if (since == TimePoint::max() || now - since < IoThreads::kIdleLeast) continue;
    Idle& idle = peers[kept.peer];
    ++idle.count;
    if (since < idle.longest) {
      idle.longest = since;
      idle.connection = kept.connection;
    }
    if (most == nullptr || idle.count > most->count) most = &idle;
  }
  if (most != nullptr) most->connection->MakeRoom();
}

void IoThread::Tick() {
  tick_.expires_after(IoThreads::kTick);
  tick_.async_wait([this](asio::error_code error) {
    if (error) return;
    const TimePoint now = Clock::System().Now();
    ForEach([now](IoConnection& connection) { connection.CheckDeadline(now); });
    Tick();
  });
}

void IoThread::Run() {
  while (!context_.stopped()) {
    if (busy_poll_.IsOn(Clock::System().Now())) {
      context_.poll();
    } else {
      context_.run_one();
    }
  }
}

IoThreads::IoThreads(Options options) : options_(std::move(options)), reserve_(OpenReserve()) {
  EMS_CHECK(options_.threads > 0 && options_.adopt && options_.refuse);
  for (uint32_t i = 0; i < options_.threads; ++i) {
    threads_.push_back(std::make_unique<IoThread>(&connections_));
  }
}

Result<std::string> IoThreads::ListenTcp(const std::string& listen) {
  EMS_ASSIGN_OR_RETURN(const Address address, ParseAddress(listen));
  if (address.is_unix()) {
    return Error(StatusCode::kInvalidArgument, "listen \"{}\": a host:port is needed", listen);
  }
  EMS_ASSIGN_OR_RETURN(Fd fd, fabric::ListenTcp(address));
  const uint16_t port = BoundPort(fd.get());
  Listen(fd.Release());
  return FormatHostPort(address.host, port);
}

Status IoThreads::ListenUnix(const std::string& path, uint32_t mode) {
  EMS_CHECK(unix_ == nullptr, "{} is a second Unix socket", path);
  Result<UnixListener> listener = UnixListener::Open(path, mode);
  if (!listener.ok()) {
    return Error(StatusCode::kUnavailable, "cannot listen on {}: {}", path,
                 Message(listener.status()));
  }
  unix_ = std::make_unique<UnixListener>(*std::move(listener));
  Listen(unix_->Release());
  return OkStatus();
}

void IoThreads::Listen(int fd) {
  listeners_.emplace_back(&threads_[0]->context(), fd);
  AwaitConnections(&listeners_.back());
}

void IoThreads::Run() {
  for (size_t i = 0; i < threads_.size(); ++i) {
    IoThread* const thread = threads_[i].get();
    thread->Tick();
    thread->thread_ = Thread(options_.name + "-" + std::to_string(i), [thread] { thread->Run(); });
  }
}

void IoThreads::AwaitConnections(Listener* listener) {
  listener->socket.async_wait(asio::posix::descriptor_base::wait_read,
                              [this, listener](asio::error_code error) {
                                if (!error) Accept(listener);
                              });
}

void IoThreads::Accept(Listener* listener) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const int fd = AcceptOne(listener->socket.native_handle());
    if (fd >= 0) {
      Take(Fd(fd), listener);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return OnExhausted(listener);
    }
  }
  AwaitConnections(listener);
}

// Out of descriptors or memory: one peer is told so, and the others wait in the kernel's queue.
void IoThreads::OnExhausted(Listener* listener) {
  reserve_.Close();
  const Fd socket(AcceptOne(listener->socket.native_handle()));
  if (socket.valid()) options_.refuse(socket.get());
  reserve_ = OpenReserve();
  listener->pause.expires_after(kAcceptPause);
  listener->pause.async_wait([this, listener](asio::error_code error) {
    if (!error) AwaitConnections(listener);
  });
}

IoThread* IoThreads::Choose(Listener* listener) {
  IoThread* chosen = nullptr;
  for (size_t i = 0; i < threads_.size(); ++i) {
    IoThread* const thread = threads_[(listener->next + i) % threads_.size()].get();
    if (chosen == nullptr || thread->count_.load(std::memory_order_relaxed) <
                                 chosen->count_.load(std::memory_order_relaxed))
      chosen = thread;
  }
  ++listener->next;
  return chosen;
}

void IoThreads::Take(Fd socket, Listener* listener) {
  const uint32_t open = connections_.load(std::memory_order_relaxed);
  const uint32_t kept_free = options_.connections_max / 16;
  if (kept_free > 0 && open + kept_free >= options_.connections_max) MakeRoom();
  if (open >= options_.connections_max) return options_.refuse(socket.get());
  IoThread* const thread = Choose(listener);
  thread->Count();
  asio::post(thread->context(), [this, thread, taken = std::move(socket)]() mutable {
    Adopt(std::move(taken), thread);
  });
}

void IoThreads::MakeRoom() {
  const auto fullest = std::ranges::max_element(threads_, {}, [](const auto& thread) {
    return thread->count_.load(std::memory_order_relaxed);
  });
  asio::post((*fullest)->context(),
             [thread = fullest->get()] { thread->MakeRoom(Clock::System().Now()); });
}

void IoThreads::Adopt(Fd socket, IoThread* thread) {
  StreamSocket stream(thread->context());
  asio::error_code error;
  stream.assign(asio::generic::stream_protocol(AF_UNSPEC, 0), socket.get(), error);
  if (error) {  // out of memory: closed
    thread->Uncount();
    return;
  }
  thread->adopting_ = PeerOf(socket.Release());
  options_.adopt(std::move(stream), thread);
}

void IoThreads::Stop(Duration patience) {
  if (std::exchange(stopped_, true)) return;
  asio::post(threads_[0]->context(), [this] {
    for (Listener& listener : listeners_) {
      asio::error_code ignored;
      listener.socket.close(ignored);
      listener.pause.cancel();
    }
  });
  unix_.reset();
  for (const auto& thread : threads_) {
    asio::post(thread->context(), [one = thread.get()] {
      one->ForEach([](IoConnection& connection) { connection.CloseIdle(); });
    });
  }
  const Deadline deadline = Deadline::After(patience);
  StopFlag never;
  while (in_hand_.load(std::memory_order_acquire) > 0 && !deadline.Passed()) {
    never.WaitFor(std::chrono::milliseconds(2));
  }
  for (const auto& thread : threads_) thread->context().stop();
  for (const auto& thread : threads_) thread->thread_.Join();
  // Coroutines and handlers die with their io_context; connections and listeners belong to it, so
  // they go first.
  for (const auto& thread : threads_) {
    thread->ForEach([](IoConnection& connection) { connection.Abandon(); });
    thread->connections_.clear();
  }
  listeners_.clear();
  threads_.clear();
}

}  // namespace ems::fabric
