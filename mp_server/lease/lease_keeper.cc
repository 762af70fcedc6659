#include "mp_server/lease/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "proto/controller.pb.h"

namespace ems::server {
namespace {

// Clients wait for slots that are held: how soon and how rarely to ask whether they still are.
constexpr Duration kHeldFirst = std::chrono::milliseconds(25);
constexpr Duration kHeldMost = std::chrono::milliseconds(250);

}  // namespace

LeaseKeeper::LeaseKeeper(NodeInfo self, Ownership* ownership, ViewCache* views, LeaseEvents events,
                         const ControlRules& rules)
    : self_(std::move(self)),
      ownership_(*ownership),
      views_(*views),
      events_(std::move(events)),
      rules_(rules),
      after_errors_(self_.boot_id, std::chrono::milliseconds(50)),
      while_held_(self_.boot_id, kHeldFirst, kHeldMost) {}

void LeaseKeeper::MakeRegister(v1::RegisterRequest* request) const {
  ToProto(self_, request->mutable_node());
  request->set_cluster(views_.cluster().value());
}

void LeaseKeeper::MakeHeartbeat(const NodeUsage& usage, const ViewIdentity& highest,
                                v1::HeartbeatRequest* request) {
  EMS_CHECK(registered_, "a heartbeat before the id is known");
  const auto [installed, fingerprint] = ownership_.installed();
  request->set_node_id(ownership_.self().value());
  request->set_boot_id(self_.boot_id);
  request->set_term(installed.term());
  request->set_epoch(installed.epoch());
  request->set_fingerprint(fingerprint);
  request->set_sequence(++heartbeats_);
  request->set_refused(ownership_.controller_refuses());
  request->set_highest_term(highest.version.term());
  request->set_highest_epoch(highest.version.epoch());
  request->set_highest_fingerprint(highest.fingerprint);
  if (const auto table = views_.namespaces(); table->version > 0) {
    request->set_namespaces_version(table->version);
    request->set_namespaces_fingerprint(table->Fingerprint());
  }
  request->set_cluster(views_.cluster().value());
  ToProto(usage, request->mutable_usage());
}

std::optional<Duration> LeaseKeeper::OnRegister(const Status& status,
                                                const v1::RegisterReply& reply) {
  if (!status.ok()) return AfterError(status);
  if (const Status other = CheckCluster(reply.cluster()); !other.ok()) return AfterStranger(other);
  OnOwnController();
  registered_ = true;
  heartbeat_ = std::chrono::milliseconds(reply.heartbeat_ms());
  lease_ = std::chrono::milliseconds(reply.lease_ms());
  ownership_.SetSelf(NodeId(reply.node_id()));
  EMS_LOG(kInfo, "mp_server", "registered name={} node={} lease_ms={}", self_.name, reply.node_id(),
          reply.lease_ms());
  events_.on_registered();
  return Duration::zero();  // the first heartbeat brings the lease
}

std::optional<Duration> LeaseKeeper::OnHeartbeat(const Status& status,
                                                 const v1::HeartbeatReply& reply, TimePoint sent,
                                                 TimePoint now) {
  if (!status.ok()) return AfterError(status);
  if (const Status other = CheckCluster(reply.cluster()); !other.ok()) return AfterStranger(other);
  OnOwnController();
  Take(reply, sent, now);
  if (ownership_.HoldsSlots()) return std::min(while_held_.Next(), heartbeat_);
  while_held_.Reset();
  return heartbeat_;
}

void LeaseKeeper::Take(const v1::HeartbeatReply& reply, TimePoint sent, TimePoint now) {
  ownership_.OnControllerAnswer(reply.renewed());
  if (reply.lease_ms() != 0) lease_ = std::chrono::milliseconds(reply.lease_ms());
  if (reply.heartbeat_ms() != 0) heartbeat_ = std::chrono::milliseconds(reply.heartbeat_ms());
  if (reply.renewed()) {
    const bool early = rules_.leases_end_early;
    ownership_.RenewLease(early ? sent + UsableLease(lease_) : now + lease_);
  }
  events_.on_active(reply.active_epoch());
  events_.on_dram(reply.dram_bytes());
  if (std::exchange(admitted_, reply.admitted()) && !reply.admitted()) events_.on_expelled();
  const ViewVersion newest(reply.term(), reply.epoch());
  const ViewVersion installed = ownership_.version();
  if (newest > installed) events_.on_behind(newest);
  if (newest < installed) events_.on_older(newest);
  if (newest != installed || reply.quota_parts().empty()) return;
  std::vector<QuotaPart> parts;
  for (const v1::QuotaPart& part : reply.quota_parts()) parts.push_back(FromProto(part));
  events_.on_quota_parts(parts);
}

Status LeaseKeeper::CheckCluster(uint64_t answered) {
  return rules_.clusters_are_told_apart ? views_.Join(ClusterId(answered)) : OkStatus();
}

void LeaseKeeper::OnOwnController() {
  after_errors_.Reset();
  if (std::exchange(stranger_, false)) events_.on_stranger(OkStatus());
}

// The lease goes on as it was, and so does the id: the controller that gave them has not spoken.
std::optional<Duration> LeaseKeeper::AfterStranger(const Status& status) {
  if (!std::exchange(stranger_, true)) {
    EMS_LOG(kError, "mp_server", "not joining, and nothing is dropped: {}", Message(status));
    events_.on_stranger(status);
  }
  return std::max(after_errors_.Next(), heartbeat_);
}

std::optional<Duration> LeaseKeeper::AfterError(const Status& status) {
  if (status.code() == StatusCode::kFailedPrecondition) return AfterStranger(status);
  if (status.code() == StatusCode::kAborted) {
    EMS_LOG(kError, "mp_server",
            "another mp-server has registered as \"{}\": this one serves no more. Give each a "
            "name of its own",
            self_.name);
    ownership_.Revoke();
    replaced_ = true;
    events_.on_replaced();
    return std::nullopt;
  }
  if (status.code() == StatusCode::kNotFound) {
    // A restarted controller listens for a short time only: it is there, so register at once.
    if (std::exchange(registered_, false)) after_errors_.Reset();
    if (std::exchange(admitted_, false)) events_.on_expelled();
  } else {
    EMS_LOG(kWarn, "mp_server", "{} failed: {}", registered_ ? "heartbeat" : "register",
            ToString(status));
  }
  return registered_ ? std::min(after_errors_.Next(), heartbeat_) : after_errors_.Next();
}

}  // namespace ems::server
