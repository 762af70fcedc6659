#pragma once
// Which cluster a call of the control plane is for, and whose an answer is: metadata "ems-cluster"
// of all calls and answers alike, so that one check holds for each of them. Older software says
// nothing of it.
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

// The call is for `cluster`; for whoever answers, when that is kNoCluster.
void AskCluster(ClusterId cluster, grpc::ClientContext* context);
// Of a call that succeeded. kNoCluster: the controller does not say.
ClusterId AnsweredBy(const grpc::ClientContext& context);

// False: the call is for another cluster than `ours`, or for none that could be, and has been
// answered so, with kFailedPrecondition or kInvalidArgument. Threading: thread-safe.
bool IsAdmitted(grpc::CallbackServerContext* context, ClusterId ours,
                grpc::ServerUnaryReactor* reactor);
// That `what`, as in "server a belongs to", names no other cluster than the controller's.
// Errors: kFailedPrecondition  it does: both are named, and `advice` is given
Status CheckSameCluster(std::string_view what, ClusterId theirs, ClusterId ours,
                        std::string_view advice);

}  // namespace ems
