#include "mp_server/restart/hold_session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace ems::server {
namespace {

// False: the time is over.
bool WaitFor(int socket, short events, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.Remaining());
  if (left.count() <= 0) return false;
  pollfd ready{socket, events, 0};
  return ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left.count(), 50))) >= 0;
}

}  // namespace

Result<fabric::Fd> ConnectHolder(const std::string& path, Deadline deadline) {
  fabric::Address address;
  address.unix_path = path;
  EMS_ASSIGN_OR_RETURN(fabric::Fd socket, fabric::Connect(address, deadline.Remaining()));
  EMS_ASSIGN_OR_RETURN(const fabric::PeerCredentials holder, fabric::CredentialsOf(socket.get()));
  if (holder.uid == ::geteuid()) return socket;
  return Error(StatusCode::kPermissionDenied,
               "user {} listens there, and this server runs as user {}: who holds its memory can "
               "read and change it. Put restart.holder where nobody else can make files, and start "
               "the holder as the server's user",
               holder.uid, ::geteuid());
}

Status SendHold(int socket, const HoldMessage& message, std::span<const int> fds,
                Deadline deadline) {
  while (true) {
    const Status sent = fabric::SendMessageTo(socket, std::as_bytes(std::span(&message, 1)), fds);
    if (sent.code() != StatusCode::kResourceExhausted) return sent;
    if (!WaitFor(socket, POLLOUT, deadline))
      return Error(StatusCode::kDeadlineExceeded, "{}", Message(sent));
  }
}

Result<HoldMessage> ReceiveHold(int socket, fabric::MessageReceiver* receiver,
                                std::vector<fabric::Fd>* fds, Deadline deadline) {
  HoldMessage message;
  const HoldMessage wanted;
  while (true) {
    const auto outcome =
        receiver->Receive(socket, std::as_writable_bytes(std::span(&message, 1)), fds);
    if (outcome == fabric::MessageReceiver::Outcome::kEnded)
      return Error(StatusCode::kUnavailable, "the other side has hung up");
    if (outcome == fabric::MessageReceiver::Outcome::kMessage) break;
    if (!WaitFor(socket, POLLIN, deadline))
      return Error(StatusCode::kDeadlineExceeded, "no answer in time");
  }
  if (message.magic != wanted.magic || message.count > kFdsHeldMax)
    return Error(StatusCode::kDataLoss, "not a message of a holder");
  return message;
}

Status SendHeld(int socket, std::span<const int> fds, Deadline deadline) {
  for (size_t at = 0; at < fds.size(); at += fabric::kFdsMax) {
    const auto some = fds.subspan(at, std::min(fabric::kFdsMax, fds.size() - at));
    EMS_RETURN_IF_ERROR(
        SendHold(socket, {.op = HoldOp::kFds, .count = some.size()}, some, deadline));
  }
  return OkStatus();
}

Result<std::vector<fabric::Fd>> ReceiveHeld(int socket, fabric::MessageReceiver* receiver,
                                            uint64_t count, Deadline deadline) {
  std::vector<fabric::Fd> all, some;
  while (all.size() < count) {
    EMS_ASSIGN_OR_RETURN(const HoldMessage message, ReceiveHold(socket, receiver, &some, deadline));
    if (message.op != HoldOp::kFds || message.count != some.size() || some.empty() ||
        some.size() > count - all.size())
      return Error(StatusCode::kDataLoss, "{} descriptors in a message of {}", some.size(),
                   message.count);
    std::move(some.begin(), some.end(), std::back_inserter(all));
    some.clear();
  }
  return all;
}

Status PutHeld(const std::string& path, std::span<const int> fds, Deadline deadline) {
  if (fds.size() > kFdsHeldMax)
    return Error(StatusCode::kUnavailable, "{} descriptors, at most {}", fds.size(), kFdsHeldMax);
  EMS_ASSIGN_OR_RETURN(const fabric::Fd socket, ConnectHolder(path, deadline));
  const HoldMessage put{.op = HoldOp::kPut, .count = fds.size()};
  EMS_RETURN_IF_ERROR(SendHold(socket.get(), put, {}, deadline));
  EMS_RETURN_IF_ERROR(SendHeld(socket.get(), fds, deadline));
  fabric::MessageReceiver receiver;
  std::vector<fabric::Fd> none;
  EMS_ASSIGN_OR_RETURN(const HoldMessage held,
                       ReceiveHold(socket.get(), &receiver, &none, deadline));
  if (held.op == HoldOp::kHeld && held.count == fds.size()) return OkStatus();
  return Error(StatusCode::kDataLoss, "it holds {} of {} descriptors", held.count, fds.size());
}

Result<std::vector<fabric::Fd>> TakeHeld(const std::string& path, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const fabric::Fd socket, ConnectHolder(path, deadline));
  EMS_RETURN_IF_ERROR(SendHold(socket.get(), {.op = HoldOp::kTake}, {}, deadline));
  fabric::MessageReceiver receiver;
  std::vector<fabric::Fd> none;
  EMS_ASSIGN_OR_RETURN(const HoldMessage held,
                       ReceiveHold(socket.get(), &receiver, &none, deadline));
  if (held.op != HoldOp::kHeld) return Error(StatusCode::kDataLoss, "not what was asked for");
  return ReceiveHeld(socket.get(), &receiver, held.count, deadline);
}

}  // namespace ems::server
