#include "pdc/rpc/ring_acceptor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "common/thread_pool.h"
#include "fabric/fd_message.h"
#include "fabric/unix_listener.h"
#include "pdc/rpc/ring_greeting.h"

namespace ems::pdc {
namespace {

using fabric::MessageReceiver;

constexpr Duration kLook = std::chrono::milliseconds(100);  // how long a stop may take
constexpr Duration kLookWhilePending = std::chrono::milliseconds(5);
// The offer has begun to come: a peer of ours sends it at once.
constexpr Duration kOfferMost = std::chrono::milliseconds(200);

// One that has connected and has not offered its ring yet.
struct Pending {
  Pending(fabric::Fd socket_in, Deadline deadline_in)
      : socket(std::move(socket_in)), deadline(deadline_in) {}
  fabric::Fd socket;
  Deadline deadline;
  MessageReceiver receiver{};
  RingGreeting greeting{};
  bool greeted = false;
};

bool IsReadable(int socket) {
  pollfd fd{socket, POLLIN, 0};
  return ::poll(&fd, 1, 0) > 0;
}

}  // namespace

struct RingAcceptor::Impl {
  Impl(fabric::UnixListener listener_in, const Options& options_in, Hooks hooks_in)
      : listener(std::move(listener_in)), options(options_in), hooks(std::move(hooks_in)) {}

  void Run();
  void Welcome(fabric::Fd socket);
  // Whether `peer` is still to be waited for; an error when it is refused.
  Result<bool> Advance(Pending* peer);

  fabric::UnixListener listener;
  const Options options;
  const Hooks hooks;
  StopFlag stop;
  std::vector<Pending> pending;  // of the thread alone
  Thread thread;
};

void RingAcceptor::Impl::Welcome(fabric::Fd socket) {
  // The socket's mode keeps others out; this holds where modes do not (a socket passed on).
  const auto peer = fabric::CredentialsOf(socket.get());
  if (!peer.ok() || (peer->uid != ::geteuid() && peer->uid != 0)) {
    EMS_LOG(kWarn, "pdc", "ring refused reason=\"another user\"");
    return;
  }
  if (pending.size() >= kPendingMax) {
    EMS_LOG(kWarn, "pdc", "ring refused pid={} reason=\"{} peers have yet to offer theirs\"",
            peer->pid, pending.size());
    return;
  }
  pending.emplace_back(std::move(socket), Deadline::After(kPatience));
}

Result<bool> RingAcceptor::Impl::Advance(Pending* peer) {
  if (!peer->greeted) {
    std::vector<fabric::Fd> fds;
    const auto outcome = peer->receiver.Receive(
        peer->socket.get(), std::as_writable_bytes(std::span(&peer->greeting, 1)), &fds);
    if (outcome == MessageReceiver::Outcome::kEnded)
      return Error(StatusCode::kUnavailable, "the peer is gone");
    if (outcome == MessageReceiver::Outcome::kMessage) {
      if (!fds.empty()) return Error(StatusCode::kInvalidArgument, "a greeting with descriptors");
      EMS_RETURN_IF_ERROR(CheckGreeting(peer->greeting, options.incarnation));
      peer->greeted = true;
    }
  }
  if (peer->greeted && IsReadable(peer->socket.get())) {
    EMS_ASSIGN_OR_RETURN(auto ring,
                         fabric::RingSender::Accept(std::move(peer->socket), kOfferMost));
    EMS_RETURN_IF_ERROR(hooks.attach(peer->greeting.session, std::move(ring)));
    return false;
  }
  if (peer->deadline.Passed())
    return Error(StatusCode::kDeadlineExceeded, "it did not offer a ring in time");
  return true;
}

void RingAcceptor::Impl::Run() {
  Deadline next_tick = Deadline::After(options.tick_every);
  while (!stop.IsSet()) {
    const Duration look = std::min(pending.empty() ? kLook : kLookWhilePending, options.tick_every);
    auto socket = listener.Accept(look);
    if (socket.ok()) {
      Welcome(*std::move(socket));
    } else if (socket.status().code() != StatusCode::kDeadlineExceeded) {
      EMS_LOG(kWarn, "pdc", "ring socket reason=\"{}\"", ToString(socket.status()));
      if (stop.WaitFor(kLook)) return;  // out of descriptors: not at full speed
    }
    std::erase_if(pending, [this](Pending& peer) {
      const Result<bool> wait = Advance(&peer);
      if (!wait.ok()) EMS_LOG(kWarn, "pdc", "ring refused reason=\"{}\"", ToString(wait.status()));
      return !wait.ok() || !*wait;
    });
    if (!next_tick.Passed()) continue;
    hooks.tick();
    next_tick = Deadline::After(options.tick_every);
  }
}

RingAcceptor::RingAcceptor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->thread = Thread("ems-rings", [this] { impl_->Run(); });
}

RingAcceptor::~RingAcceptor() {
  impl_->stop.Set();
  impl_->thread.Join();
}

Result<std::unique_ptr<RingAcceptor>> RingAcceptor::Start(const Options& options, Hooks hooks) {
  EMS_ASSIGN_OR_RETURN(auto listener, fabric::UnixListener::Open(options.path));
  auto impl = std::make_unique<Impl>(std::move(listener), options, std::move(hooks));
  return std::unique_ptr<RingAcceptor>(
      new RingAcceptor(std::move(impl)));  // NOLINT: the constructor is private
}

}  // namespace ems::pdc
