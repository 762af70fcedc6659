#include "mp_server/restart/holder.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "common/daemon.h"
#include "common/daemon_arguments.h"
#include "common/logging.h"
#include "mp_server/restart/hold_session.h"

namespace ems::server {

Result<FdHolder> FdHolder::Open(const std::string& path, Duration keep) {
  EMS_ASSIGN_OR_RETURN(fabric::UnixListener listener, fabric::UnixListener::Open(path, 0600));
  return FdHolder(std::move(listener), keep);
}

void FdHolder::Step(Duration timeout) {
  Result<fabric::Fd> peer = listener_.Accept(timeout);
  if (!held_.empty() && Clock::System().Now() >= until_) {
    EMS_LOG(kWarn, "mp_server", "nobody has come for {} descriptors: dropped", held_.size());
    held_.clear();
  }
  if (!peer.ok()) return;
  const auto who = fabric::CredentialsOf(peer->get());
  if (!who.ok() || who->uid != ::geteuid()) return;
  const Status served = Serve(peer->get());
  // A server that only looks whether somebody is here says nothing.
  if (!served.ok() && served.code() != StatusCode::kUnavailable)
    EMS_LOG(kWarn, "mp_server", "pid {}: {}", who->pid, Message(served));
}

Status FdHolder::Serve(int socket) {
  const Deadline deadline = Deadline::After(kStorePatience);
  fabric::MessageReceiver receiver;
  std::vector<fabric::Fd> none;
  EMS_ASSIGN_OR_RETURN(const HoldMessage asked, ReceiveHold(socket, &receiver, &none, deadline));
  if (asked.op == HoldOp::kPut) {
    EMS_ASSIGN_OR_RETURN(held_, ReceiveHeld(socket, &receiver, asked.count, deadline));
    until_ = Clock::System().Now() + keep_;
    EMS_LOG(kInfo, "mp_server", "holding {} descriptors", held_.size());
    return SendHold(socket, {.op = HoldOp::kHeld, .count = held_.size()}, {}, deadline);
  }
  if (asked.op != HoldOp::kTake) return Error(StatusCode::kDataLoss, "not a request");
  // Whatever becomes of them on the way.
  const std::vector<fabric::Fd> given = std::exchange(held_, {});
  std::vector<int> fds;
  for (const fabric::Fd& fd : given) fds.push_back(fd.get());
  EMS_LOG(kInfo, "mp_server", "giving {} descriptors back", fds.size());
  EMS_RETURN_IF_ERROR(SendHold(socket, {.op = HoldOp::kHeld, .count = fds.size()}, {}, deadline));
  return SendHeld(socket, fds, deadline);
}

int RunHolder(const std::string& path, const std::string& ready_file) {
  const StopSignals signals;
  auto holder = FdHolder::Open(path);
  Status begun = holder.status();
  if (begun.ok() && !ready_file.empty())
    begun = WriteReadyFile(ready_file, fmt::format(R"({{"pid": {}, "unix": ""}})", ::getpid()));
  if (!begun.ok()) {
    std::fputs(fmt::format("mp-server: --hold {}: {}\n", path, Message(begun)).c_str(), stderr);
    return kDaemonFailed;
  }
  EMS_LOG(kInfo, "mp_server", "holding for a restart socket={}", path);
  while (signals.Wait(Duration::zero()) == 0) holder->Step(std::chrono::milliseconds(200));
  return kDaemonOk;
}

}  // namespace ems::server
