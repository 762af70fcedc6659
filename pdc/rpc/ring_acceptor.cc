#include "pdc/rpc/ring_acceptor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/logging.h"

namespace ems::pdc {
namespace {

using fabric::MessageReceiver;

constexpr Duration kLook = std::chrono::milliseconds(100);  // how long a stop may take
constexpr Duration kLookWhilePending = std::chrono::milliseconds(5);
// The offer has begun to come: a peer of ours sends it at once.
constexpr Duration kOfferMost = std::chrono::milliseconds(200);

bool IsReadable(int socket) {
  pollfd fd{socket, POLLIN, 0};
  return ::poll(&fd, 1, 0) > 0;
}

}  // namespace

void RingAcceptor::Welcome(fabric::Fd socket) {
  // The socket's mode keeps others out; this holds where modes do not (a socket passed on).
  const auto peer = fabric::CredentialsOf(socket.get());
  if (!peer.ok() || (peer->uid != ::geteuid() && peer->uid != 0)) {
    EMS_LOG(kWarn, "pdc", "ring refused reason=\"another user\"");
    return;
  }
  if (pending_.size() >= kPendingMax) {
    EMS_LOG(kWarn, "pdc", "ring refused pid={} reason=\"{} peers have yet to offer theirs\"",
            peer->pid, pending_.size());
    return;
  }
  pending_.push_back({.socket = std::move(socket), .deadline = Deadline::After(kPatience)});
}

Result<bool> RingAcceptor::Advance(Pending* peer) {
  if (!peer->greeted) {
    std::vector<fabric::Fd> fds;
    const auto outcome = peer->receiver.Receive(
        peer->socket.get(), std::as_writable_bytes(std::span(&peer->greeting, 1)), &fds);
    if (outcome == MessageReceiver::Outcome::kEnded)
      return Error(StatusCode::kUnavailable, "the peer is gone");
    if (outcome == MessageReceiver::Outcome::kMessage) {
      if (!fds.empty()) return Error(StatusCode::kInvalidArgument, "a greeting with descriptors");
      EMS_RETURN_IF_ERROR(CheckGreeting(peer->greeting, options_.incarnation));
      peer->greeted = true;
    }
  }
  if (peer->greeted && IsReadable(peer->socket.get())) {
    EMS_ASSIGN_OR_RETURN(auto ring,
                         fabric::RingSender::Accept(std::move(peer->socket), kOfferMost));
    EMS_RETURN_IF_ERROR(hooks_.attach(peer->greeting.session, std::move(ring)));
    return false;
  }
  if (peer->deadline.Passed())
    return Error(StatusCode::kDeadlineExceeded, "it did not offer a ring in time");
  return true;
}

void RingAcceptor::Run() {
  Deadline next_tick = Deadline::After(options_.tick_every);
  while (!stop_.IsSet()) {
    const Duration look =
        std::min(pending_.empty() ? kLook : kLookWhilePending, options_.tick_every);
    auto socket = listener_.Accept(look);
    if (socket.ok()) {
      Welcome(*std::move(socket));
    } else if (socket.status().code() != StatusCode::kDeadlineExceeded) {
      EMS_LOG(kWarn, "pdc", "ring socket reason=\"{}\"", ToString(socket.status()));
      if (stop_.WaitFor(kLook)) return;  // out of descriptors: not at full speed
    }
    std::erase_if(pending_, [this](Pending& peer) {
      const Result<bool> wait = Advance(&peer);
      if (!wait.ok()) EMS_LOG(kWarn, "pdc", "ring refused reason=\"{}\"", ToString(wait.status()));
      return !wait.ok() || !*wait;
    });
    if (!next_tick.Passed()) continue;
    hooks_.tick();
    next_tick = Deadline::After(options_.tick_every);
  }
}

RingAcceptor::RingAcceptor(fabric::UnixListener listener, const Options& options, Hooks hooks)
    : listener_(std::move(listener)), options_(options), hooks_(std::move(hooks)) {
  thread_ = Thread("ems-rings", [this] { Run(); });
}

RingAcceptor::~RingAcceptor() {
  stop_.Set();
  thread_.Join();
}

Result<std::unique_ptr<RingAcceptor>> RingAcceptor::Start(const Options& options, Hooks hooks) {
  EMS_ASSIGN_OR_RETURN(auto listener, fabric::UnixListener::Open(options.path));
  return std::unique_ptr<RingAcceptor>(new RingAcceptor(  // NOLINT: the constructor is private
      std::move(listener), options, std::move(hooks)));
}

}  // namespace ems::pdc
