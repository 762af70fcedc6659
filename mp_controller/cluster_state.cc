#include "mp_controller/cluster_state.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/random_id.h"
#include "mp_controller/request_check.h"
#include "mp_controller/view/namespace_codec.h"
#include "mp_controller/view_builder.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

v1::NodeState ToProto(NodeState state) {
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

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

void Fill(const MemberStatus& member, v1::NodeStatus* out) {
  v1::Node* node = out->mutable_node();
  node->set_id(member.info.id.value());
  node->set_name(member.info.name);
  node->set_boot_id(member.info.boot_id);
  node->set_data_address(member.info.data_address);
  node->set_unix_path(member.info.unix_path);
  node->set_host_id(member.info.host_id);
  node->set_http_address(member.info.http_address);
  node->set_capacity_bytes(member.info.capacity_bytes);
  node->set_state(ToProto(member.state));
  ToProto(member.usage, out->mutable_usage());
  out->set_heartbeat_age_ms(Ms(member.heartbeat_age));
  out->set_term(member.installed.term());
  out->set_epoch(member.installed.epoch());
  out->set_ahead(member.ahead);
}

uint32_t CountMoved(const SlotTable& before, const SlotTable& after) {
  uint32_t moved = 0;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(static_cast<uint16_t>(i));
    if (before.owner(slot) != after.owner(slot)) ++moved;
  }
  return moved;
}

}  // namespace

ClusterState::ClusterState(const MembershipOptions& options, const Parts& parts)
    : options_(options), parts_(parts), membership_(options) {}

Status ClusterState::Start(const std::string& default_namespace) {
  EMS_ASSIGN_OR_RETURN(StoredState stored, parts_.store->Load());
  if (stored.term >= ViewVersion::kTermMax || stored.epoch >= ViewVersion::kEpochMax) {
    return Error(StatusCode::kResourceExhausted, "term {} or epoch {} is the last one", stored.term,
                 stored.epoch);
  }
  const bool first_start = stored.term == 0;
  term_ = stored.term + 1;
  epoch_ = known_epoch_ = stored.epoch;
  next_node_id_ = stored.next_node_id;
  for (const StoredNode& node : stored.nodes) membership_.RestoreNode(node.id, node.name);
  namespaces_ = NamespaceRegistry(std::move(stored.namespaces), stored.namespaces_version,
                                  stored.next_namespace_id);
  if (first_start && !default_namespace.empty() && namespaces_.size() == 0) {
    NamespaceInfo wanted;
    wanted.name = default_namespace;
    EMS_ASSIGN_OR_RETURN(const NamespaceChange change, namespaces_.PlanCreate(std::move(wanted)));
    EMS_RETURN_IF_ERROR(Commit(change));
  }
  // The term last: a crash before it is a first start again, with the namespace there already.
  EMS_RETURN_IF_ERROR(parts_.store->PutTerm(term_));
  parts_.metrics->term.Set(static_cast<double>(term_));
  parts_.publisher->Publish(namespaces_.Snapshot());
  EMS_LOG(kInfo, "mp_controller", "started term={} nodes_known={} namespaces={}", term_,
          stored.nodes.size(), namespaces_.size());
  if (stored.view == nullptr) return PublishView({}, SlotTable(), false);
  stored_view_ = stored.view;
  membership_.RestoreView(*stored.view, parts_.clock->Now());
  return PublishView(stored.view->nodes(), stored.view->slots(), stored.view->frozen());
}

Status ClusterState::Counted(const Status& store_status) const {
  if (!store_status.ok()) parts_.metrics->store_errors.Add();
  return store_status;
}

Status ClusterState::PublishView(std::vector<NodeInfo> nodes, const SlotTable& slots, bool frozen) {
  // An epoch that was tried is never tried again, even if the store refused it.
  const ViewVersion version(term_, ++epoch_);
  const DhtView* const last = view_ != nullptr ? view_.get() : stored_view_.get();
  SlotHistory history =
      SlotHistory::After(history_ends_ ? nullptr : last, nodes, slots, version.epoch(), RandomId());
  EMS_ASSIGN_OR_RETURN(ViewCache::View next,
                       DhtView::Make(version, std::move(nodes), slots, frozen, std::move(history)));
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutView(*next)));
  const uint32_t moved = view_ == nullptr ? 0 : CountMoved(view_->slots(), next->slots());
  view_ = next;
  history_ends_ = false;
  parts_.publisher->Publish(next);
  parts_.metrics->views_published.Add();
  parts_.metrics->slots_moved.Add(moved);
  parts_.metrics->epoch.Set(static_cast<double>(version.epoch()));
  parts_.metrics->frozen.Set(frozen ? 1 : 0);
  EMS_LOG(kInfo, "mp_controller",
          "view published term={} epoch={} nodes={} slots_moved={} frozen={}", version.term(),
          version.epoch(), next->nodes().size(), moved, frozen);
  return OkStatus();
}

void ClusterState::LogFreeze(const Proposal& proposal) const {
  if (proposal.frozen && !membership_.frozen()) {
    EMS_LOG(kError, "mp_controller",
            "{} of {} servers are gone: the view is frozen and their slots answer nothing. Bring "
            "servers back, or accept the loss (emsctl)",
            proposal.missing, proposal.members);
  } else if (!proposal.frozen && membership_.frozen()) {
    EMS_LOG(kInfo, "mp_controller", "view thawed missing={} members={}", proposal.missing,
            proposal.members);
  }
}

Status ClusterState::PublishProposal(const Proposal& proposal) {
  SlotTable slots = view_->slots();
  if (!proposal.frozen) {
    std::vector<NodeWeight> weights;
    for (const NodeInfo& node : proposal.nodes) weights.push_back({node.id, node.capacity_bytes});
    slots = BuildSlots(slots, std::move(weights));
  }
  EMS_RETURN_IF_ERROR(PublishView(proposal.nodes, slots, proposal.frozen));
  LogFreeze(proposal);
  membership_.Commit(proposal, parts_.clock->Now());
  return OkStatus();
}

void ClusterState::Tick() {
  if (const auto proposal = membership_.Propose(parts_.clock->Now())) {
    const Status status = PublishProposal(*proposal);
    if (!status.ok() && !publish_failing_) {
      EMS_LOG(kError, "mp_controller", "no view can be published: {}", ToString(status));
    }
    publish_failing_ = !status.ok();
  }
  parts_.metrics->nodes_live.Set(static_cast<double>(membership_.live_count()));
  parts_.metrics->nodes_known.Set(static_cast<double>(membership_.known_count()));
  parts_.metrics->namespaces.Set(static_cast<double>(namespaces_.size()));
  parts_.metrics->watchers.Set(static_cast<double>(parts_.publisher->watchers()));
}

Status ClusterState::AddNode(const std::string& name) {
  EMS_RETURN_IF_ERROR(membership_.CanAddNode());
  const NodeId id(next_node_id_);
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutNode({.id = id, .name = name}, next_node_id_ + 1)));
  ++next_node_id_;
  membership_.AddNode(id, name);
  return OkStatus();
}

Status ClusterState::Register(const v1::RegisterRequest& request, v1::RegisterReply* reply) {
  EMS_ASSIGN_OR_RETURN(NodeInfo info, CheckRegister(request));
  if (!membership_.IdOf(info.name).has_value()) EMS_RETURN_IF_ERROR(AddNode(info.name));
  const std::string name = info.name;
  const uint64_t boot_id = info.boot_id;
  EMS_ASSIGN_OR_RETURN(const NodeId id, membership_.Register(std::move(info), parts_.clock->Now()));
  EMS_LOG(kInfo, "mp_controller", "registered name={} id={} boot={:x} address={} capacity={}", name,
          id.value(), boot_id, request.node().data_address(),
          FormatBytes(request.node().capacity_bytes()));
  reply->set_node_id(id.value());
  reply->set_lease_ms(static_cast<uint32_t>(Ms(options_.lease)));
  reply->set_heartbeat_ms(static_cast<uint32_t>(Ms(options_.heartbeat)));
  return OkStatus();
}

Status ClusterState::Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply) {
  EMS_ASSIGN_OR_RETURN(const HeartbeatEvent event, CheckHeartbeat(request));
  EMS_ASSIGN_OR_RETURN(const bool admitted,
                       membership_.Heartbeat(event.id, event.boot_id, event.installed, event.usage,
                                             parts_.clock->Now()));
  parts_.metrics->heartbeats.Add();
  reply->set_term(view_->version().term());
  reply->set_epoch(view_->version().epoch());
  reply->set_admitted(admitted);
  if (!Knows(event.installed)) OnUnknownView(event.id, event.installed);
  return OkStatus();
}

// What an earlier term published is in the store that this one began with.
bool ClusterState::Knows(ViewVersion installed) const {
  if (installed.term() == term_) return installed <= view_->version();
  return installed.term() < term_ && installed.epoch() <= known_epoch_;
}

void ClusterState::OnUnknownView(NodeId id, ViewVersion installed) {
  const bool first = membership_.MarkAhead(id);
  if (first) {
    EMS_LOG(kError, "mp_controller",
            "server {} has installed view {}.{}, but the last one here is {}.{}: was an older copy "
            "of this controller's data_dir put back, or is it new? Nothing that servers store is "
            "kept. Stop all servers, empty their data_dirs and start them again",
            id.value(), installed.term(), installed.epoch(), view_->version().term(),
            view_->version().epoch());
  }
  if (began_anew_ && installed < view_->version()) return;
  if (const Status begun = BeginAnewBeyond(installed); !begun.ok() && first) {
    EMS_LOG(kError, "mp_controller", "no view beyond {}.{} can be published: {}", installed.term(),
            installed.epoch(), ToString(begun));
  }
}

Status ClusterState::BeginAnewBeyond(ViewVersion installed) {
  // One more between: the next view is what a server without a history would go on with.
  const uint64_t term = std::max(term_, installed.term()) + 1;
  const uint64_t epoch = std::max(epoch_, installed.epoch()) + 1;
  if (term >= ViewVersion::kTermMax || epoch >= ViewVersion::kEpochMax)
    return Error(StatusCode::kResourceExhausted, "term {} or epoch {} is the last one", term,
                 epoch);
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutTerm(term)));
  known_epoch_ = epoch_;
  term_ = term;
  epoch_ = epoch;
  history_ends_ = true;
  parts_.metrics->term.Set(static_cast<double>(term_));
  EMS_RETURN_IF_ERROR(PublishView(view_->nodes(), view_->slots(), view_->frozen()));
  began_anew_ = true;
  return OkStatus();
}

Status ClusterState::Leave(const v1::LeaveRequest& request, v1::LeaveReply*) {
  EMS_RETURN_IF_ERROR(
      membership_.Leave(NodeId(request.node_id()), request.boot_id(), parts_.clock->Now()));
  EMS_LOG(kInfo, "mp_controller", "left id={}", request.node_id());
  return OkStatus();
}

Status ClusterState::ListNodes(const v1::ListNodesRequest&, v1::ListNodesReply* reply) {
  for (const MemberStatus& member : membership_.List(parts_.clock->Now())) {
    v1::NodeStatus* status = reply->add_nodes();
    Fill(member, status);
    status->set_slots(view_->slots().CountOf(member.info.id));
  }
  return OkStatus();
}

Status ClusterState::RemoveNode(const v1::RemoveNodeRequest& request, v1::RemoveNodeReply*) {
  EMS_RETURN_IF_ERROR(membership_.CanRemove(request.name()));
  EMS_RETURN_IF_ERROR(Counted(parts_.store->DeleteNode(request.name())));
  membership_.Remove(request.name());
  EMS_LOG(kInfo, "mp_controller", "node removed name={}", request.name());
  return OkStatus();
}

Status ClusterState::AcceptLoss(const v1::AcceptLossRequest&, v1::AcceptLossReply*) {
  EMS_RETURN_IF_ERROR(membership_.AcceptLoss());
  EMS_LOG(kWarn, "mp_controller", "an operator accepted the loss of the missing servers");
  Tick();
  if (!view_->frozen()) return OkStatus();
  // Leases may be ending just now, or the disk refuses: the decision stands and is tried again, but
  // it is not durable yet and must not be promised.
  return Error(StatusCode::kUnavailable, "the view has not thawed yet: ask again in a second");
}

Status ClusterState::Commit(const NamespaceChange& change) {
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutNamespace(change)));
  namespaces_.Apply(change);
  parts_.publisher->Publish(namespaces_.Snapshot());
  EMS_LOG(kInfo, "mp_controller", "namespace {} name={} id={} generation={}",
          change.deleted ? "deleted" : "stored", change.info.name, change.info.ref.id.value(),
          change.info.ref.generation);
  return OkStatus();
}

Status ClusterState::CreateNamespace(const v1::CreateNamespaceRequest& request,
                                     v1::Namespace* reply) {
  EMS_ASSIGN_OR_RETURN(NamespaceInfo wanted, CheckCreate(request));
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, namespaces_.PlanCreate(std::move(wanted)));
  EMS_RETURN_IF_ERROR(Commit(change));
  ems::ToProto(change.info, reply);
  return OkStatus();
}

Status ClusterState::GetNamespace(const v1::GetNamespaceRequest& request, v1::Namespace* reply) {
  EMS_ASSIGN_OR_RETURN(const NamespaceInfo info, namespaces_.Get(request.name()));
  ems::ToProto(info, reply);
  return OkStatus();
}

Status ClusterState::ListNamespaces(const v1::ListNamespacesRequest&,
                                    v1::ListNamespacesReply* reply) {
  const auto table = namespaces_.Snapshot();
  for (const auto& [id, info] : table->by_id) ems::ToProto(info, reply->add_namespaces());
  return OkStatus();
}

Status ClusterState::UpdateNamespace(const v1::UpdateNamespaceRequest& request,
                                     v1::Namespace* reply) {
  EMS_ASSIGN_OR_RETURN(NamespaceInfo wanted, CheckUpdate(request));
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, namespaces_.PlanUpdate(std::move(wanted)));
  EMS_RETURN_IF_ERROR(Commit(change));
  ems::ToProto(change.info, reply);
  return OkStatus();
}

Status ClusterState::DeleteNamespace(const v1::DeleteNamespaceRequest& request,
                                     v1::DeleteNamespaceReply*) {
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, namespaces_.PlanDelete(request.name()));
  return Commit(change);
}

}  // namespace ems::controller
