#include "mp_controller/node_status.h"

#include <chrono>
#include <set>

#include "cluster/hit_curve.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

v1::NodeState StateOf(NodeState state) {
  switch (state) {
    case NodeState::kLive:
      return v1::NODE_LIVE;
    case NodeState::kDown:
      return v1::NODE_DOWN;
    case NodeState::kLeft:
      return v1::NODE_LEFT;
    case NodeState::kUnknown:
      break;
  }
  return v1::NODE_UNKNOWN;
}

}  // namespace

void ToProto(const MemberStatus& member, v1::NodeStatus* out) {
  ems::ToProto(member.info, out->mutable_node());
  out->mutable_node()->set_state(StateOf(member.state));
  ems::ToProto(member.usage, out->mutable_usage());
  out->mutable_usage()->clear_curves();  // ListNamespaces has those of all servers together
  out->mutable_usage()->clear_quota_parts();
  out->set_heartbeat_age_ms(
      static_cast<uint64_t>(member.heartbeat_age / std::chrono::milliseconds(1)));
  out->set_term(member.installed.term());
  out->set_epoch(member.installed.epoch());
  out->set_ahead(member.ahead);
  out->set_never_heard(member.never_heard);
  out->mutable_node()->set_joined_unix_ms(member.times.joined_unix_ms);
  out->mutable_node()->set_left_unix_ms(member.times.left_unix_ms);
}

void ToProto(const DrainStatus& drain, v1::NodeStatus* out) {
  out->set_pulls_from(static_cast<uint32_t>(drain.pulls_from));
  if (drain.state == DrainState::kNone) return;
  out->set_drain(drain.state == DrainState::kDrained ? v1::DRAIN_DRAINED : v1::DRAIN_DRAINING);
  out->set_pulled_by(static_cast<uint32_t>(drain.pulled_by));
  out->set_stopping(drain.stopping);
}

void AddHitCurves(const std::vector<MemberStatus>& members, v1::ListNamespacesReply* reply) {
  std::vector<HitCurve> curves;
  for (const MemberStatus& member : members) {
    if (member.state != NodeState::kLive) continue;
    curves.insert(curves.end(), member.usage.curves.begin(), member.usage.curves.end());
  }
  std::set<NamespaceRef> known;
  for (const v1::Namespace& one : reply->namespaces())
    known.insert({NamespaceId(one.id()), one.generation()});
  for (const HitCurve& curve : SumByNamespace(curves))
    if (known.contains(curve.ref)) ems::ToProto(curve, reply->add_curves());
}

}  // namespace ems::controller
