#include "mp_controller/cluster_state.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/logging.h"
#include "common/random_id.h"
#include "common/version.h"
#include "common/wall_time.h"
#include "mp_controller/freeze_log.h"
#include "mp_controller/node_status.h"
#include "mp_controller/publish/copy_builder.h"
#include "mp_controller/publish/next_history.h"
#include "mp_controller/publish/view_builder.h"
#include "mp_controller/request_check.h"
#include "proto/cluster_metadata.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

uint64_t Ms(Duration duration) {
  return static_cast<uint64_t>(std::chrono::duration_cast<milliseconds>(duration).count());
}

// Whose fingerprints are remembered: weeks of changes.
constexpr size_t kMadeViewsMax = 4096;
// Clusters whose servers are reported, each once.
constexpr size_t kStrangersReportedMax = 64;

}  // namespace

ClusterState::ClusterState(const MembershipOptions& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      own_{.lease_ms = Ms(options.lease), .heartbeat_ms = Ms(options.heartbeat)},
      membership_(options),
      drains_({.settle = options.settle, .patience = options.drain_timeout}),
      node_records_({parts.store, &membership_, parts.metrics, &drains_}),
      store_age_(options, parts.rules),
      namespaces_({parts.store, parts.publisher, parts.metrics, &store_age_, parts.events}),
      activation_(parts.rules) {}

Status ClusterState::Start(const std::string& default_namespace) {
  EMS_ASSIGN_OR_RETURN(StoredState stored, parts_.store->Load());
  if (stored.term >= ViewVersion::kTermMax || stored.epoch >= ViewVersion::kEpochMax) {
    return Error(StatusCode::kResourceExhausted, "term {} or epoch {} is the last one", stored.term,
                 stored.epoch);
  }
  cluster_ = stored.cluster;
  if (cluster_ == kNoCluster) {
    cluster_ = ClusterId(RandomId());
    EMS_RETURN_IF_ERROR(parts_.store->PutCluster(cluster_));
  }
  const bool first_start = stored.term == 0;
  term_ = stored.term + 1;
  epoch_ = known_epoch_ = stored.epoch;
  next_node_id_ = stored.next_node_id;
  const TimePoint now = parts_.clock->Now();
  // The life before may have renewed leases up to its very end, and have given longer ones.
  longest_ = {.lease_ms = std::max(own_.lease_ms, stored.given.lease_ms),
              .heartbeat_ms = std::max(own_.heartbeat_ms, stored.given.heartbeat_ms)};
  if (longest_ != stored.given) EMS_RETURN_IF_ERROR(parts_.store->PutTimes(longest_));
  const Duration lease = milliseconds(longest_.lease_ms);
  // Who has had no answer for so long asks more often than the longest heartbeat.
  if (longest_ != own_)
    longest_end_at_ = now + std::max(lease, ListenFirst(milliseconds(longest_.heartbeat_ms)));
  for (const ViewCache::View& view : stored.views) {
    activation_.Restore(*view, stored.active, now + lease);
    Remember(*view);
  }
  for (const StoredNode& node : stored.nodes) {
    membership_.RestoreNode(node.id, node.name, node.left ? node.stopped_boot_id : 0, node.times);
    node_records_.Restore(node);
    if (node.stopped_boot_id != 0) activation_.OnGone({node.id, node.stopped_boot_id}, now);
  }
  namespaces_.Restore(
      {std::move(stored.namespaces), stored.namespaces_version, stored.next_namespace_id});
  if (first_start && !default_namespace.empty() && namespaces().size() == 0)
    EMS_RETURN_IF_ERROR(namespaces_.CreateNamed(default_namespace));
  // The term last: a crash before it is a first start again, with the namespace there already.
  EMS_RETURN_IF_ERROR(parts_.store->PutTerm(term_));
  parts_.metrics->term.Set(static_cast<double>(term_));
  namespaces_.Publish();
  EMS_LOG(kInfo, "mp_controller", "started cluster={} term={} nodes_known={} namespaces={}",
          ClusterText(cluster_), term_, stored.nodes.size(), namespaces().size());
  if (stored.views.empty()) return PublishView({}, SlotTable(), false);
  // As it is: servers that have installed it, or a newer one, take no other for it.
  view_ = stored.views.back();
  published_at_ = now;
  membership_.RestoreView(*view_, now, now + lease);
  store_age_.Restore(*view_, lease);
  drains_.OnPublished(*view_, /*given_out=*/false, now);
  parts_.publisher->Publish(view_);
  parts_.metrics->epoch.Set(static_cast<double>(view_->version().epoch()));
  parts_.metrics->frozen.Set(view_->frozen() ? 1 : 0);
  return PublishDue(now);
}

void ClusterState::Remember(const DhtView& view) {
  made_[view.version()] = {view.Fingerprint(), parts_.clock->Now()};
  if (made_.size() > kMadeViewsMax) made_.erase(made_.begin());
}

Status ClusterState::PublishView(std::vector<NodeInfo> nodes, const SlotTable& slots, bool frozen) {
  // An epoch that was tried is never tried again, even if the store refused it.
  const ViewVersion version(term_, ++epoch_);
  EMS_CHECK(view_ == nullptr || view_->version() < version, "view {} after {}", version.packed(),
            view_->version().packed());
  SlotHistory history =
      NextHistory(history_ends_ ? nullptr : view_.get(), nodes, slots, version.epoch(), RandomId());
  std::vector<NodeId> previous =
      PreviousOwners(history_ends_ ? nullptr : view_.get(), slots, history);
  SlotCopies copies = NextCopies(nodes, slots, frozen);
  EMS_ASSIGN_OR_RETURN(ViewCache::View next,
                       DhtView::Make(version, std::move(nodes), slots, frozen, std::move(history),
                                     cluster_, std::move(previous), std::move(copies)));
  ViewWindow window = activation_.Window();
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutView(next, window)));
  stored_window_ = std::move(window);
  stored_window_.open.push_back(version);
  const uint32_t moved = view_ == nullptr ? 0 : view_->slots().CountMoved(next->slots());
  view_ = next;
  published_at_ = parts_.clock->Now();
  copies_ = namespaces().copies_max();
  activation_.OnPublished(*next, published_at_);
  Remember(*next);
  drains_.OnPublished(*next, /*given_out=*/false, published_at_);
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

SlotCopies ClusterState::NextCopies(std::span<const NodeInfo> nodes, const SlotTable& slots,
                                    bool frozen) const {
  const SlotCopies before = view_ == nullptr ? SlotCopies() : view_->copies();
  const std::vector<NodeInfo> out = frozen ? std::vector<NodeInfo>() : drains_.OwnersOf(nodes);
  return BuildCopies(before, slots, frozen ? nodes : out, namespaces().copies_max());
}

Status ClusterState::PublishGivenOut(const std::vector<NodeInfo>& nodes) {
  const SlotTable slots = BuildSlotsOf(view_->slots(), drains_.OwnersOf(nodes), view_->copies());
  EMS_RETURN_IF_ERROR(PublishView(nodes, slots, /*frozen=*/false));
  drains_.OnPublished(*view_, /*given_out=*/true, published_at_);
  return OkStatus();
}

Status ClusterState::PublishProposal(const Proposal& proposal) {
  EMS_CHECK(view_ != nullptr, "a proposal before Start");
  EMS_RETURN_IF_ERROR(proposal.frozen ? PublishView(proposal.nodes, view_->slots(), true)
                                      : PublishGivenOut(proposal.nodes));
  LogFreeze(proposal, membership_.frozen());
  membership_.Commit(proposal, parts_.clock->Now());
  return OkStatus();
}

// One view after the other, as long as servers install them in time.
bool ClusterState::MayPublish(TimePoint now) {
  const bool is_active = activation_.Active(now) == view_->version();  // it forgets views first
  if (parts_.rules.open_views_are_kept && !activation_.HasRoom()) {
    if (!crowded_since_.has_value()) {
      crowded_since_ = now;
      EMS_LOG(kError, "mp_controller",
              "no further view can be published: {} wait until it is certain that no old owner of "
              "slots takes Puts. `emsctl status` names those; if they have stopped for good, "
              "accept the loss (emsctl)",
              Activation::kOpenViewsMax);
    }
    return false;
  }
  crowded_since_.reset();
  return is_active || now - published_at_ >= options_.heartbeat;
}

void ClusterState::Tick() {
  const TimePoint now = parts_.clock->Now();
  if (last_tick_.has_value() && now - *last_tick_ > options_.heartbeat) {
    activation_.Prolong(now - *last_tick_);
    store_age_.Prolong(now - *last_tick_);
  }
  last_tick_ = now;
  store_age_.Tick(now);
  if (longest_end_at_.has_value() && *longest_end_at_ <= now &&
      Counted(parts_.store->PutTimes(own_)).ok())
    longest_end_at_.reset();
  Status status = PublishDue(now);
  if (status.ok()) status = StoreWindow(now);
  if (!status.ok() && !publish_failing_)
    EMS_LOG(kError, "mp_controller", "no view can be published: {}", ToString(status));
  publish_failing_ = !status.ok();
  SetGauges(now);
}

Status ClusterState::PublishDue(TimePoint now) {
  const auto proposal = membership_.Propose(now);  // leases end, whether or not a view may say so
  if (!store_age_.MayGoOn()) return OkStatus();
  // Until there is room for the first view of this term, the stored one holds.
  const bool begins_term = view_->version().term() != term_;
  const bool drains = drains_.IsDue(*view_, now);
  const bool copies = !view_->frozen() && copies_ != namespaces().copies_max();
  if ((!begins_term && !proposal && !drains && !copies) || !MayPublish(now)) return OkStatus();
  if (begins_term) return PublishView(view_->nodes(), view_->slots(), view_->frozen());
  return proposal ? PublishProposal(*proposal) : PublishGivenOut(view_->nodes());
}

Status ClusterState::StoreWindow(TimePoint now) {
  (void)activation_.Active(now);
  ViewWindow window = activation_.Window();
  if (window == stored_window_) return OkStatus();
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutWindow(window)));
  stored_window_ = std::move(window);
  return OkStatus();
}

void ClusterState::SetGauges(TimePoint now) const {
  const Membership::Counts nodes = membership_.Count(now);
  parts_.metrics->nodes_live.Set(static_cast<double>(nodes.live));
  parts_.metrics->nodes_down.Set(static_cast<double>(nodes.down));
  parts_.metrics->nodes_stopped.Set(static_cast<double>(nodes.stopped));
  parts_.metrics->nodes_left.Set(static_cast<double>(nodes.left));
  parts_.metrics->nodes_ahead.Set(static_cast<double>(nodes.ahead));
  parts_.metrics->store_is_old.Set(store_age_.IsOld() ? 1 : 0);
  parts_.metrics->namespaces.Set(static_cast<double>(namespaces().size()));
  parts_.metrics->watchers.Set(static_cast<double>(parts_.publisher->watchers()));
}

Status ClusterState::CheckCluster(ClusterId theirs, std::string_view who) {
  if (!parts_.rules.clusters_are_told_apart || !AreStrangers(theirs, cluster_)) return OkStatus();
  parts_.metrics->strangers_refused.Add();
  const Status refused =
      CheckSameCluster(fmt::format("server {} belongs to", Printable(who)), theirs, cluster_,
                       "give it its own controller's address, or another data_dir to join here");
  if (strangers_.size() < kStrangersReportedMax && strangers_.insert(theirs).second)
    EMS_LOG(kWarn, "mp_controller", "refused: {}", Message(refused));
  return refused;
}

Status ClusterState::AddNode(const std::string& name) {
  EMS_RETURN_IF_ERROR(membership_.CanAddNode());
  if (const auto oldest = membership_.NodeToForget()) {
    if (IsWaitedFor(*oldest)) {
      return Error(StatusCode::kResourceExhausted,
                   "{} servers that are gone are remembered, and Puts wait for the oldest, {}: "
                   "accept the loss first (emsctl view accept-loss)",
                   kGoneNodesMax, *oldest);
    }
    EMS_RETURN_IF_ERROR(Counted(parts_.store->DeleteNode(*oldest)));
    if (const auto id = membership_.IdOf(*oldest)) Forget(*id);
    membership_.Remove(*oldest);
    EMS_LOG(kInfo, "mp_controller", "node forgotten name={}: {} that are gone are remembered",
            *oldest, kGoneNodesMax);
  }
  const NodeId id(next_node_id_);
  const NodeTimes times{.joined_unix_ms = UnixMs()};
  EMS_RETURN_IF_ERROR(
      Counted(parts_.store->PutNode({.id = id, .name = name, .times = times}, next_node_id_ + 1)));
  ++next_node_id_;
  membership_.AddNode(id, name, times);
  return OkStatus();
}

Status ClusterState::Register(const v1::RegisterRequest& request, v1::RegisterReply* reply) {
  EMS_ASSIGN_OR_RETURN(NodeInfo info, CheckRegister(request));
  EMS_RETURN_IF_ERROR(CheckCluster(ClusterId(request.cluster()), info.name));
  if (!membership_.IdOf(info.name).has_value()) EMS_RETURN_IF_ERROR(AddNode(info.name));
  const std::string name = info.name;
  const uint64_t boot_id = info.boot_id;
  const TimePoint now = parts_.clock->Now();
  if (const NodeId id = *membership_.IdOf(name);
      membership_.HasLeft(name) || membership_.TimesOf(id).left_unix_ms != 0) {
    StoredNode record = node_records_.Of(id);
    record.left = false;
    record.times.left_unix_ms = 0;
    EMS_RETURN_IF_ERROR(node_records_.Put(record, next_node_id_));
  }
  EMS_ASSIGN_OR_RETURN(const NodeId id, membership_.Register(info, now));
  info.id = id;
  activation_.OnThere(info, now);
  store_age_.OnRegistered({id, boot_id}, ClusterId(request.cluster()) == cluster_);
  EMS_LOG(kInfo, "mp_controller", "registered name={} id={} boot={:x} address={} capacity={}", name,
          id.value(), boot_id, request.node().data_address(),
          FormatBytes(request.node().capacity_bytes()));
  reply->set_node_id(id.value());
  reply->set_lease_ms(static_cast<uint32_t>(Ms(options_.lease)));
  reply->set_heartbeat_ms(static_cast<uint32_t>(Ms(options_.heartbeat)));
  reply->set_cluster(cluster_.value());
  return OkStatus();
}

Status ClusterState::Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply) {
  EMS_ASSIGN_OR_RETURN(const HeartbeatEvent event, CheckHeartbeat(request));
  EMS_RETURN_IF_ERROR(
      CheckCluster(ClusterId(request.cluster()), fmt::format("with boot id {:x}", event.boot_id)));
  EMS_RETURN_IF_ERROR(membership_.Check(event.id, event.boot_id, event.sequence));
  const TimePoint now = parts_.clock->Now();
  const Process process{event.id, event.boot_id};
  store_age_.OnHeard(process);
  bool ahead = !Knows(event.highest, event.highest_fingerprint) ||
               !Knows(event.installed, event.fingerprint) ||
               !namespaces().Knows(event.table, event.table_fingerprint);
  if (ahead && !parts_.rules.servers_ahead_are_parked) ahead = !BeginAnewBeyond(event.highest).ok();
  if (ahead) {
    ReportAhead(event, now);
  } else {
    store_age_.OnKnown(event.id);
    activation_.OnInstalled(process, event.installed, now);
  }
  if (event.refused) activation_.OnRefused(process, now);
  const bool may_renew = !ahead && activation_.MayRenew(process, event.installed);
  // By an old store nobody gets a lease, so being refused makes nobody go down.
  EMS_ASSIGN_OR_RETURN(const bool admitted,
                       membership_.Heartbeat(event.id, event.boot_id,
                                             {.sequence = event.sequence,
                                              .installed = event.installed,
                                              .usage = event.usage,
                                              .ahead = ahead,
                                              .alive = may_renew || store_age_.IsOld()},
                                             now));
  drains_.OnWord(event.id, {event.boot_id, event.installed, event.stopping, event.pulling_from,
                            event.vouching_for});
  parts_.metrics->heartbeats.Add();
  // An error is no refusal: servers go on by their leases and by each other.
  if (store_age_.IsListening())
    return Error(StatusCode::kUnavailable, "starting: servers are heard before leases are given");
  const bool renewed = admitted && may_renew && store_age_.MayGoOn();
  if (renewed) activation_.OnRenewed(process, now + options_.lease);
  reply->set_term(view_->version().term());
  reply->set_epoch(view_->version().epoch());
  reply->set_admitted(admitted);
  reply->set_renewed(renewed);
  reply->set_lease_ms(static_cast<uint32_t>(Ms(options_.lease)));
  reply->set_heartbeat_ms(static_cast<uint32_t>(Ms(options_.heartbeat)));
  reply->set_active_epoch(activation_.Active(now).epoch());
  reply->set_cluster(cluster_.value());
  reply->set_dram_bytes(node_records_.DramBytes(event.id));
  if (event.stopping) reply->set_may_stop(StatusOfDrain(event.id, now).may_stop);
  if (!renewed) return OkStatus();
  for (const QuotaPart& part :
       quota_parts_.OnHeartbeat(event.id, event.installed, event.usage, *view_, namespaces(), now))
    ems::ToProto(part, reply->add_quota_parts());
  return OkStatus();
}

// The store keeps few views of earlier terms: of the others only the highest epoch is known.
bool ClusterState::Knows(ViewVersion version, uint64_t fingerprint) const {
  const auto made = made_.find(version);
  if (made != made_.end()) return fingerprint == 0 || fingerprint == made->second.fingerprint;
  if (version.term() == term_) return version < made_.begin()->first;
  return version.term() < term_ && version.epoch() <= known_epoch_;
}

Duration ClusterState::BehindFor(ViewVersion installed, TimePoint now) const {
  const auto missing = made_.upper_bound(installed);
  return missing == made_.end() ? Duration::zero() : now - missing->second.at;
}

void ClusterState::ReportAhead(const HeartbeatEvent& event, TimePoint now) {
  const std::string name = membership_.NameOf(event.id);
  const ViewVersion highest = std::max(event.highest, event.installed), own = view_->version();
  const auto advice = store_age_.OnAhead({event.id, event.boot_id}, name, highest, now);
  if (advice.empty()) return;
  EMS_LOG(kError, "mp_controller",
          "server \"{}\" has view {}.{} and namespaces of version {}, the last ones here are {}.{} "
          "and {}: {}",
          name, highest.term(), highest.epoch(), event.table, own.term(), own.epoch(),
          namespaces().version(), advice);
}

Status ClusterState::AcceptAhead(const v1::AcceptAheadRequest&, v1::AcceptAheadReply*) {
  EMS_ASSIGN_OR_RETURN(const ViewVersion highest, store_age_.Accept(parts_.clock->Now()));
  EMS_LOG(kWarn, "mp_controller", "an operator accepted that servers are ahead, up to view {}.{}",
          highest.term(), highest.epoch());
  EMS_RETURN_IF_ERROR(BeginAnewBeyond(highest));
  store_age_.OnAccepted(highest);
  return OkStatus();
}

Status ClusterState::BeginAnewBeyond(ViewVersion highest) {
  if (activation_.open_views() >= kViewsKept) {
    return Error(StatusCode::kUnavailable,
                 "servers may still act by {} older views: ask again when they have the newest",
                 activation_.open_views());
  }
  // One more between: the next view is what a server without a history would go on with.
  const uint64_t term = std::max(term_, highest.term()) + 1;
  const uint64_t epoch = std::max(epoch_, highest.epoch()) + 1;
  if (term >= ViewVersion::kTermMax || epoch >= ViewVersion::kEpochMax)
    return Error(StatusCode::kResourceExhausted, "term {} or epoch {} is the last one", term,
                 epoch);
  EMS_RETURN_IF_ERROR(namespaces_.Skip());
  EMS_RETURN_IF_ERROR(Counted(parts_.store->PutTerm(term)));
  known_epoch_ = epoch_;
  EMS_CHECK(term > term_ && epoch > epoch_, "from {}.{} back to {}.{}", term_, epoch_, term, epoch);
  term_ = term;
  epoch_ = epoch;
  history_ends_ = true;
  parts_.metrics->term.Set(static_cast<double>(term_));
  return PublishView(view_->nodes(), view_->slots(), view_->frozen());
}

Status ClusterState::Leave(const v1::LeaveRequest& request, v1::LeaveReply*) {
  const NodeId id(request.node_id());
  const TimePoint now = parts_.clock->Now();
  const bool is_anothers = membership_.IsAnothers(id, request.boot_id());
  if (!is_anothers) EMS_RETURN_IF_ERROR(membership_.Check(id, request.boot_id()));
  StoredNode record = node_records_.Of(id);
  record.stopped_boot_id = request.boot_id();
  record.left = !is_anothers && !request.keeps_slots();
  if (!is_anothers) record.times.left_unix_ms = UnixMs();
  // It has been told, and will not act any more, or has not begun; or its slots wait for the next.
  if (is_anothers || request.keeps_slots()) {
    // Who has left last is remembered before one that had the name earlier.
    if (!membership_.HasLeft(record.name)) EMS_RETURN_IF_ERROR(StoreStopped(record));
    activation_.OnGone({id, request.boot_id()}, now);
    return OkStatus();
  }
  EMS_RETURN_IF_ERROR(StoreStopped(record));
  EMS_RETURN_IF_ERROR(membership_.Leave(id, request.boot_id(), now));
  activation_.OnGone({id, request.boot_id()}, now);
  EMS_LOG(kInfo, "mp_controller", "left id={}", request.node_id());
  return OkStatus();
}

Status ClusterState::ListNodes(const v1::ListNodesRequest&, v1::ListNodesReply* reply) {
  const TimePoint now = parts_.clock->Now();
  Duration waiting = BehindFor(activation_.Active(now), now);
  if (crowded_since_.has_value()) waiting = std::max(waiting, now - *crowded_since_);
  const std::vector<NodeId> waited_for = activation_.WaitsFor(now);
  std::unordered_map<NodeId, uint32_t> slots;
  for (const NodeId owner : view_->slots().owners()) ++slots[owner];
  for (const MemberStatus& member : membership_.List(now)) {
    v1::NodeStatus* status = reply->add_nodes();
    ToProto(member, status);
    ToProto(StatusOfDrain(member.info.id, now), status);
    const bool waited = std::ranges::count(waited_for, member.info.id) > 0;
    status->mutable_node()->set_dram_set_bytes(node_records_.DramBytes(member.info.id));
    status->set_waited_for(waited);
    if (waited) status->set_waiting_ms(Ms(waiting));
    status->set_slots(slots[member.info.id]);
    status->set_behind_ms(Ms(BehindFor(member.installed, now)));
  }
  reply->set_cluster(cluster_.value());
  reply->set_store_is_old(store_age_.IsOld());
  reply->set_heartbeat_ms(static_cast<uint32_t>(Ms(options_.heartbeat)));
  // What servers may go by still.
  reply->set_lease_ms(
      static_cast<uint32_t>(longest_end_at_.has_value() ? longest_.lease_ms : own_.lease_ms));
  reply->set_now_unix_ms(UnixMs());
  reply->set_version(std::string(Version()));
  return OkStatus();
}

Status ClusterState::RemoveNode(const v1::RemoveNodeRequest& request, v1::RemoveNodeReply*) {
  EMS_RETURN_IF_ERROR(membership_.CanRemove(request.name()));
  const auto id = membership_.IdOf(request.name());
  // ListNodes would name nobody then.
  if (IsWaitedFor(request.name())) {
    return Error(StatusCode::kFailedPrecondition,
                 "Puts of slots of server {} wait for it: accept the loss first (emsctl view "
                 "accept-loss), or try again when `emsctl node list` says that nobody waits",
                 Printable(request.name()));
  }
  EMS_RETURN_IF_ERROR(Counted(parts_.store->DeleteNode(request.name())));
  if (id) Forget(*id);
  membership_.Remove(request.name());
  EMS_LOG(kInfo, "mp_controller", "node removed name={}", request.name());
  return OkStatus();
}

Status ClusterState::AcceptLoss(const v1::AcceptLossRequest&, v1::AcceptLossReply*) {
  const TimePoint now = parts_.clock->Now();
  EMS_RETURN_IF_ERROR(store_age_.CheckNotOld());
  EMS_RETURN_IF_ERROR(membership_.CheckHeard(now));
  const bool waits = !activation_.WaitsFor(now).empty();
  const Status thaws = membership_.AcceptLoss();
  if (!thaws.ok() && !waits) return thaws;
  activation_.AcceptLoss(membership_.Lives(), now);
  EMS_LOG(kWarn, "mp_controller", "an operator accepted the loss of the missing servers");
  Tick();
  // Leases may be ending just now, or the disk refuses: the decision stands and is tried again, but
  // it is not durable yet and must not be acknowledged.
  EMS_RETURN_IF_ERROR(StoreWindow(now));
  if (!view_->frozen()) return OkStatus();
  return Error(StatusCode::kUnavailable, "the view has not thawed yet: ask again in a second");
}

}  // namespace ems::controller
