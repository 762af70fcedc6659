#include "cluster/leader_calls.h"

#include <grpcpp/grpcpp.h>

#include <optional>

#include "proto/cluster_metadata.h"
#include "proto/status_codec.h"

namespace ems {

LeaderCalls::LeaderCalls(std::string_view addresses, int message_bytes_max, ViewCache* joined)
    : channels_(addresses, message_bytes_max) {
  for (size_t i = 0; i < channels_.size(); ++i)
    calls_.push_back(std::make_unique<UnaryCalls>(channels_.channel(i), joined));
}

bool LeaderCalls::OnFailed(size_t controller, const Status& status,
                           const grpc::ClientContext& context) {
  // Cancelled: by a controller that ends its service, as when it begins or ceases to lead.
  const bool silent = status.code() == StatusCode::kUnavailable ||
                      status.code() == StatusCode::kDeadlineExceeded ||
                      status.code() == StatusCode::kCancelled;
  if (status.ok() || !silent) return false;
  const std::optional<std::string> leader = LeaderNamedBy(context);
  if (!leader.has_value() || !channels_.Follow(*leader)) channels_.Leave(controller);
  return leader.has_value();
}

Status LeaderCalls::Call(Deadline deadline, const MakeCall& call, bool reads) {
  EMS_RETURN_IF_ERROR(channels_.fault());
  for (size_t tries = 1;; ++tries) {
    const std::optional<size_t> picked = channels_.PickConnected(deadline);
    if (!picked.has_value()) {
      return Error(StatusCode::kUnavailable, "{}none of {} controllers can be reached", kStarting,
                   channels_.size());
    }
    const size_t controller = *picked;
    bool may_repeat = false;
    const Status status = calls_[controller]->Call(deadline, [&](grpc::ClientContext* context) {
      grpc::Status answer = call(controller, context);
      const Status failed = FromGrpc(answer);
      may_repeat = OnFailed(controller, failed, *context);
      if (reads &&
          (failed.code() == StatusCode::kUnavailable || failed.code() == StatusCode::kCancelled))
        may_repeat = true;
      return answer;
    });
    // All of them have been asked, so that it may be asked again as if none could be reached.
    if (reads && may_repeat && tries >= channels_.size() && tries > 1 &&
        Message(status).find(kStarting) == std::string_view::npos) {
      return Error(StatusCode::kUnavailable, "{}controller {}: {}", kStarting,
                   channels_.address(controller), Message(status));
    }
    if (status.code() == StatusCode::kCancelled && !may_repeat && !closed_.load()) {
      return Error(
          StatusCode::kUnavailable,
          "controller {}: it ended its service meanwhile, as one does that stops or ceases "
          "to lead: it is not known whether this was done",
          channels_.address(controller));
    }
    if (status.ok() || !may_repeat || tries >= channels_.size() || deadline.Passed())
      return Prefixed(status, fmt::format("controller {}", channels_.address(controller)));
  }
}

void LeaderCalls::Close() {
  closed_.store(true);
  for (const auto& calls : calls_) calls->Close();
}

}  // namespace ems
