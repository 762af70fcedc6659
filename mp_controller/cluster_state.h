#pragma once
// What the controller knows and decides: membership, slots, namespaces. Each change is durable
// before it is published.
//
// A server that says that it belongs to another cluster is refused by name, and changes nothing: no
// id is given, no process replaced. A server that has a view which this store knows nothing of gets
// no lease; when it belongs to this cluster, the store is an older copy, others may have owned
// slots meanwhile, and nobody gets one (store_age.h). An operator decides (AcceptAhead): then views
// go on beyond that one, with a history of their own, so that no server keeps anything from before.
//
// Invariant: views are published in (term, epoch) order and no (term, epoch) twice; an answer is
// given only after its change is in the store. Bound: those of Membership, NamespaceRegistry and
// ControllerStore.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "mp_controller/activation.h"
#include "mp_controller/cluster_store.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/durable_namespaces.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/membership.h"
#include "mp_controller/node_records.h"
#include "mp_controller/node_status.h"
#include "mp_controller/publish/drains.h"
#include "mp_controller/publish/view_publisher.h"
#include "mp_controller/quota_parts.h"
#include "mp_controller/store_age.h"

namespace ems::v1 {
class RegisterRequest;
class RegisterReply;
class HeartbeatRequest;
class HeartbeatReply;
class LeaveRequest;
class LeaveReply;
class ListNodesRequest;
class ListNodesReply;
class RemoveNodeRequest;
class RemoveNodeReply;
class SetNodeRequest;
class SetNodeReply;
class DrainNodeRequest;
class DrainNodeReply;
class AcceptLossRequest;
class AcceptLossReply;
class AcceptAheadRequest;
class AcceptAheadReply;
}  // namespace ems::v1

namespace ems::controller {

struct HeartbeatEvent;

// All pointers must outlive the object. Threading: one thread (the controller's loop).
class ClusterState final {
 public:
  struct Parts {
    const Clock* clock;
    ClusterStore* store;
    ViewPublisher* publisher;
    ControllerMetrics* metrics;
    ControlRules rules = {};
    ClusterEvents* events = nullptr;  // told of namespaces; null: nobody is
  };
  ClusterState(const MembershipOptions& options, const Parts& parts);

  // Loads the store, gives it a cluster id if it has none, takes the next term, makes
  // `default_namespace` (unless empty) at the very first start, and publishes the stored view;
  // under the new term when it has listened (store_age.h). Errors: of the store; kResourceExhausted
  // no term left
  Status Start(const std::string& default_namespace);
  // Servers can reach this controller from now on: until then no lease ends of those that the store
  // had.
  void Listen() {
    const std::chrono::milliseconds heartbeat(longest_.heartbeat_ms);
    membership_.Listen(parts_.clock->Now(), heartbeat);
    store_age_.Listen(parts_.clock->Now(), heartbeat);
  }
  // Of the store. Does not change after Start, so any thread may ask.
  ClusterId cluster() const { return cluster_; }
  // Ends leases and publishes what follows from it. Call it each kTick. Cost: O(nodes).
  static constexpr Duration kTick = std::chrono::milliseconds(50);
  void Tick();

  Status Register(const v1::RegisterRequest& request, v1::RegisterReply* reply);
  // Errors: also kUnavailable  listening still: its word is taken, and its lease stays as it is; or
  // a later one of this process was there before: nothing has changed
  Status Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply);
  Status Leave(const v1::LeaveRequest& request, v1::LeaveReply* reply);
  Status ListNodes(const v1::ListNodesRequest& request, v1::ListNodesReply* reply);
  Status SetNode(const v1::SetNodeRequest& request, v1::SetNodeReply*) {
    return node_records_.Set(request, next_node_id_);
  }
  Status DrainNode(const v1::DrainNodeRequest& request, v1::DrainNodeReply*) {
    return node_records_.Drain(request, *view_, next_node_id_);
  }
  Status RemoveNode(const v1::RemoveNodeRequest& request, v1::RemoveNodeReply* reply);
  Status AcceptLoss(const v1::AcceptLossRequest& request, v1::AcceptLossReply* reply);
  // Errors: also kUnavailable  servers may not have been heard, leases of before may not have
  // ended, or as many views are open as the store keeps: ask again
  Status AcceptAhead(const v1::AcceptAheadRequest& request, v1::AcceptAheadReply* reply);
  Status CreateNamespace(const v1::CreateNamespaceRequest& request, v1::Namespace* reply) {
    return namespaces_.Create(request, reply);
  }
  Status GetNamespace(const v1::GetNamespaceRequest& request, v1::Namespace* reply) {
    return namespaces_.Get(request, reply);
  }
  Status ListNamespaces(const v1::ListNamespacesRequest& request, v1::ListNamespacesReply* reply) {
    EMS_RETURN_IF_ERROR(namespaces_.List(request, reply));
    AddHitCurves(membership_.List(parts_.clock->Now()), reply);
    return OkStatus();
  }
  Status UpdateNamespace(const v1::UpdateNamespaceRequest& request, v1::Namespace* reply) {
    return namespaces_.Update(request, reply);
  }
  Status DeleteNamespace(const v1::DeleteNamespaceRequest& request,
                         v1::DeleteNamespaceReply* reply) {
    return namespaces_.Delete(request, reply);
  }

 private:
  // Errors: kFailedPrecondition  the server `who` belongs to another cluster
  Status CheckCluster(ClusterId theirs, std::string_view who);
  Status AddNode(const std::string& name);
  bool IsWaitedFor(const std::string& name) const {
    const auto id = membership_.IdOf(name);
    return id.has_value() && activation_.WaitsFor(*id, parts_.clock->Now());
  }
  void Forget(NodeId id) {
    store_age_.Forget(id);
    node_records_.Forget(id);
  }
  const NamespaceRegistry& namespaces() const { return namespaces_.registry(); }
  // Makes the next view durable and publishes it. With `history_ends_` it begins a new history.
  Status PublishView(std::vector<NodeInfo> nodes, const SlotTable& slots, bool frozen);
  // The same, with slots given out to these nodes.
  Status PublishGivenOut(const std::vector<NodeInfo>& nodes);
  Status PublishProposal(const Proposal& proposal);
  // Who holds copies in a view of these nodes and owners.
  SlotCopies NextCopies(std::span<const NodeInfo> nodes, const SlotTable& slots, bool frozen) const;
  // What is due and has room: the first view of this term, or what membership proposes.
  Status PublishDue(TimePoint now);
  // Whether this store can have made that view. `fingerprint` 0: it is not told.
  bool Knows(ViewVersion version, uint64_t fingerprint) const;
  void ReportAhead(const HeartbeatEvent& event, TimePoint now);
  Status BeginAnewBeyond(ViewVersion highest);
  bool MayPublish(TimePoint now);
  void Remember(const DhtView& view);
  // Makes durable what has become of views. What is certain here is certain in a later life, which
  // may not hear again of those who proved it.
  Status StoreWindow(TimePoint now);
  // Of a process that stops in order. Errors: of the store
  Status StoreStopped(const StoredNode& record) {
    if (parts_.rules.leaving_is_durable) return node_records_.Put(record, next_node_id_);
    node_records_.Remember(record);
    return OkStatus();
  }
  DrainStatus StatusOfDrain(NodeId id, TimePoint now) {
    return drains_.StatusOf(id, *view_, activation_.Active(now), now);
  }
  // How long ago the first view was published that is newer than `installed`; zero: there is none.
  Duration BehindFor(ViewVersion installed, TimePoint now) const;
  void SetGauges(TimePoint now) const;
  Status Counted(const Status& store_status) const {
    if (!store_status.ok()) parts_.metrics->store_errors.Add();
    return store_status;
  }

  const MembershipOptions options_;
  const Parts parts_;
  const GivenTimes own_;
  Membership membership_;
  Drains drains_;
  NodeRecords node_records_;
  ViewCache::View view_;  // at first the stored one, of an earlier term
  StoreAge store_age_;
  DurableNamespaces namespaces_;
  Activation activation_;
  QuotaParts quota_parts_;
  ClusterId cluster_;
  uint64_t term_ = 0;
  uint64_t epoch_ = 0;  // highest ever tried
  uint32_t next_node_id_ = 1;
  bool publish_failing_ = false;
  std::optional<TimePoint> crowded_since_;  // no view could be published
  ViewWindow stored_window_;
  uint64_t known_epoch_ = 0;   // highest that an earlier term can have
  bool history_ends_ = false;  // with the next view
  struct MadeView {
    uint64_t fingerprint = 0;
    TimePoint at;  // published, or found by this start
  };
  std::map<ViewVersion, MadeView> made_;  // the last ones
  std::set<ClusterId> strangers_;         // that were reported
  TimePoint published_at_{};              // the newest view
  size_t copies_ = 0;                     // of each slot, in it
  std::optional<TimePoint> last_tick_;
  GivenTimes longest_;                       // that servers may go by, from an earlier life
  std::optional<TimePoint> longest_end_at_;  // they are longer than this one's until then
};

}  // namespace ems::controller
