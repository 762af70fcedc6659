#pragma once
// Which cluster a call of the control plane is for, and whose an answer is: metadata "ems-cluster"
// of all calls and answers alike, so that one check holds for each of them. Older software says
// nothing of it.
//
// And which controller to ask instead of one that does not lead: metadata "ems-leader" at the end
// of each of its answers. They are kUnavailable, which older software takes for a controller that
// is down.
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/cluster_id.h"
#include "common/status.h"

namespace grpc {
class CallbackServerContext;
class ClientContext;
class ServerUnaryReactor;
}  // namespace grpc

namespace ems {

inline constexpr char kClusterMetadata[] = "ems-cluster";  // its value: ClusterText
// How an answer begins after which the same call may go again: nothing was done.
inline constexpr std::string_view kStarting = "starting: ";
inline constexpr char kLeaderMetadata[] = "ems-leader";  // its value: host:port, or "-": nobody

// The call is for `cluster`; for whoever answers, when that is kNoCluster.
void AskCluster(ClusterId cluster, grpc::ClientContext* context);
// Of a call that succeeded. kNoCluster: the controller does not say.
ClusterId AnsweredBy(const grpc::ClientContext& context);

// Of a call that failed: the controller that has answered does not lead, has done nothing, and
// names the one that does; empty: it knows none. Nothing: no such answer.
std::optional<std::string> LeaderNamedBy(const grpc::ClientContext& context);

// False: the call is for another cluster than `ours`, or for none that could be, and has been
// answered so, with kFailedPrecondition or kInvalidArgument. Threading: thread-safe.
bool IsAdmitted(grpc::CallbackServerContext* context, ClusterId ours,
                grpc::ServerUnaryReactor* reactor);
// Whether the controller leads: nothing when it does, or else who does: host:port, empty if that is
// not known.
using FindOtherLeader = std::function<std::optional<std::string>()>;
// What a controller answers that does not lead: kUnavailable, and who to ask, also in the metadata
// of `context`, whose call ends with it. Nothing has been done.
Status RefuseAsFollower(const std::string& leader, grpc::CallbackServerContext* context);
// Ends the call with `status`; or, when this controller does not lead now, with
// RefuseAsFollower: it may have been deposed while it worked. `other` empty: it always leads.
void Answer(const Status& status, const FindOtherLeader& other,
            grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor);

// That `what`, as in "server a belongs to", names no other cluster than the controller's.
// Errors: kFailedPrecondition  it does: both are named, and `advice` is given
Status CheckSameCluster(std::string_view what, ClusterId theirs, ClusterId ours,
                        std::string_view advice);

}  // namespace ems
