#include "proto/cluster_metadata.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <optional>

#include "common/bytes.h"
#include "proto/status_codec.h"

namespace ems {
namespace {

// Nothing: it says none.
std::optional<std::string_view> NamedIn(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
    const char* name = kClusterMetadata) {
  const auto named = metadata.find(name);
  if (named == metadata.end()) return std::nullopt;
  return std::string_view(named->second.data(), named->second.size());
}

Status CheckCaller(const grpc::CallbackServerContext& context, ClusterId ours) {
  const auto named = NamedIn(context.client_metadata());
  if (!named.has_value()) return OkStatus();
  const std::optional<ClusterId> theirs = ParseCluster(*named);
  if (!theirs.has_value()) {
    return Error(StatusCode::kInvalidArgument, "{} \"{}\" is no cluster: 16 hexadecimal digits",
                 kClusterMetadata, Printable(*named));
  }
  return CheckSameCluster("this call is for", *theirs, ours,
                          "correct the controller's address, or the cluster");
}

}  // namespace

void AskCluster(ClusterId cluster, grpc::ClientContext* context) {
  if (cluster != kNoCluster) context->AddMetadata(kClusterMetadata, ClusterText(cluster));
}

ClusterId AnsweredBy(const grpc::ClientContext& context) {
  const auto named = NamedIn(context.GetServerInitialMetadata());
  return named.has_value() ? ParseCluster(*named).value_or(kNoCluster) : kNoCluster;
}

std::optional<std::string> LeaderNamedBy(const grpc::ClientContext& context) {
  const auto named = NamedIn(context.GetServerTrailingMetadata(), kLeaderMetadata);
  if (!named.has_value()) return std::nullopt;
  return *named == "-" ? std::string() : std::string(*named);
}

bool IsAdmitted(grpc::CallbackServerContext* context, ClusterId ours,
                grpc::ServerUnaryReactor* reactor) {
  context->AddInitialMetadata(kClusterMetadata, ClusterText(ours));
  const Status refused = CheckCaller(*context, ours);
  if (refused.ok()) return true;
  reactor->Finish(ToGrpc(refused));
  return false;
}

Status RefuseAsFollower(const std::string& leader, grpc::CallbackServerContext* context) {
  context->AddTrailingMetadata(kLeaderMetadata, leader.empty() ? "-" : leader);
  if (leader.empty()) {
    return Error(
        StatusCode::kUnavailable,
        "{}this controller does not lead, and no other one does yet: ask again in a second",
        kStarting);
  }
  return Error(StatusCode::kUnavailable, "{}this controller is not the leader, try {}", kStarting,
               leader);
}

void Answer(const Status& status, const FindOtherLeader& other,
            grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) {
  const std::optional<std::string> leader = other ? other() : std::nullopt;
  reactor->Finish(ToGrpc(leader.has_value() ? RefuseAsFollower(*leader, context) : status));
}

Status CheckSameCluster(std::string_view what, ClusterId theirs, ClusterId ours,
                        std::string_view advice) {
  if (!AreStrangers(theirs, ours)) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "{} cluster {}, and this is the controller of cluster {}: {}", what,
               ClusterText(theirs), ClusterText(ours), advice);
}

}  // namespace ems
