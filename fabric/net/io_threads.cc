#include "fabric/net/io_threads.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
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

// `from`: where it comes from, also when it has been reset meanwhile.
int AcceptOne(int listener, sockaddr_storage* from) {
  socklen_t size = sizeof(*from);
  return ::accept4(listener, reinterpret_cast<sockaddr*>(from), &size,
                   SOCK_CLOEXEC | SOCK_NONBLOCK);
}

// Its address without the port, or who it is where it is of this host.
PeerNumber PeerOf(int socket, const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return Checksum(
        std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, 1)));
  if (address.ss_family == AF_INET6)
    return Checksum(
        std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr, 1)));
  ucred process{};
  socklen_t size = sizeof(process);
  (void)::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &size);
  return LocalPeer(process.pid, process.uid);
}

// Whether the last sixteenth of what may be is in use.
bool IsNear(uint32_t count, uint32_t most) {
  const uint32_t kept_free = most / 16;
  return kept_free > 0 && count >= most - kept_free;
}

}  // namespace

PeerNumber LocalPeer(pid_t pid, uid_t uid) {
  constexpr PeerNumber kUsers = PeerNumber{1} << 32;  // above all processes
  return pid != 0 ? static_cast<PeerNumber>(pid) : kUsers | uid;
}

ConnectionCounts::Count ConnectionCounts::Of(PeerNumber peer) {
  auto counts = counts_.Lock();
  const auto it = counts->of_peer.find(peer);
  return {counts->all, it == counts->of_peer.end() ? 0 : it->second};
}

void ConnectionCounts::Add(PeerNumber peer) {
  auto counts = counts_.Lock();
  ++counts->all;
  ++counts->of_peer[peer];
}

void ConnectionCounts::Remove(PeerNumber peer) {
  auto counts = counts_.Lock();
  const auto it = counts->of_peer.find(peer);
  EMS_CHECK(it != counts->of_peer.end(), "a connection was released twice");
  --counts->all;
  if (--it->second == 0) counts->of_peer.erase(it);
}

IoThread::At IoThread::Keep(std::shared_ptr<IoConnection> connection) {
  return connections_.insert(connections_.end(), {std::move(connection), adopting_});
}

void IoThread::LetGo(At at) {
  Uncount(at->peer);
  connections_.erase(at);
}

void IoThread::Count(PeerNumber peer) {
  count_.fetch_add(1, std::memory_order_relaxed);
  counts_.Add(peer);
}

void IoThread::Uncount(PeerNumber peer) {
  count_.fetch_sub(1, std::memory_order_relaxed);
  counts_.Remove(peer);
}

void IoThread::ForEach(const std::function<void(IoConnection&)>& deed) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const std::shared_ptr<IoConnection> connection = (at++)->connection;
    deed(*connection);
  }
}

bool IoThread::MakeRoom(TimePoint now, std::optional<PeerNumber> of, std::atomic<bool>* asking) {
  struct Idle {
    size_t count = 0;
    TimePoint longest = TimePoint::max();
    std::shared_ptr<IoConnection> connection;
  };
  std::unordered_map<PeerNumber, Idle> peers;
  const Idle* most = nullptr;
  for (const Kept& kept : connections_) {
    if (of && kept.peer != *of) continue;
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
  if (most == nullptr) return false;
  asking->store(false, std::memory_order_release);
  most->connection->MakeRoom();
  return true;
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
      if (context_.poll() > 0) continue;
      const TimePoint before = Clock::System().Now();
      ::sched_yield();
      busy_poll_.OnYield(before, Clock::System().Now());
    } else {
      context_.run_one();
    }
  }
}

IoThreads::IoThreads(Options options) : options_(std::move(options)), reserve_(OpenReserve()) {
  EMS_CHECK(options_.threads > 0 && options_.adopt && options_.refuse);
  for (uint32_t i = 0; i < options_.threads; ++i) {
    threads_.push_back(std::make_unique<IoThread>(&counts_));
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
    sockaddr_storage from{};
    Fd socket(AcceptOne(listener->socket.native_handle(), &from));
    if (socket.valid()) {
      const PeerNumber peer = PeerOf(socket.get(), from);
      Take(std::move(socket), peer, listener);
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
  sockaddr_storage from{};
  const Fd socket(AcceptOne(listener->socket.native_handle(), &from));
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

void IoThreads::Take(Fd socket, PeerNumber peer, Listener* listener) {
  const ConnectionCounts::Count open = counts_.Of(peer);
  // A peer near its own limit makes room for itself, at nobody else's cost.
  if (IsNear(open.of_peer, options_.peer_connections_max)) {
    MakeRoom(peer);
  } else if (IsNear(open.all, options_.connections_max)) {
    MakeRoom(std::nullopt);
  }
  if (open.all >= options_.connections_max || open.of_peer >= options_.peer_connections_max)
    return options_.refuse(socket.get());
  IoThread* const thread = Choose(listener);
  thread->Count(peer);
  asio::post(thread->context(), [this, thread, peer, taken = std::move(socket)]() mutable {
    Adopt(std::move(taken), peer, thread);
  });
}

void IoThreads::MakeRoom(std::optional<PeerNumber> of) {
  if (asking_.exchange(true, std::memory_order_acq_rel)) return;
  const auto fullest = std::ranges::max_element(threads_, {}, [](const auto& thread) {
    return thread->count_.load(std::memory_order_relaxed);
  });
  AskForRoom(static_cast<size_t>(fullest - threads_.begin()), threads_.size(), of);
}

void IoThreads::AskForRoom(size_t thread, size_t left, std::optional<PeerNumber> of) {
  asio::post(threads_[thread]->context(), [this, thread, left, of] {
    if (threads_[thread]->MakeRoom(Clock::System().Now(), of, &asking_)) return;
    if (left == 1) return asking_.store(false, std::memory_order_release);
    AskForRoom((thread + 1) % threads_.size(), left - 1, of);
  });
}

void IoThreads::Adopt(Fd socket, PeerNumber peer, IoThread* thread) {
  StreamSocket stream(thread->context());
  asio::error_code error;
  stream.assign(asio::generic::stream_protocol(AF_UNSPEC, 0), socket.get(), error);
  if (error) {  // out of memory: closed
    thread->Uncount(peer);
    return;
  }
  (void)socket.Release();
  thread->adopting_ = peer;
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
