#pragma once
// What the controller knows and decides: membership, slots, namespaces. Each change is durable
// before it is published.
//
// A server that has a view which this store knows nothing of shows that the store is an older copy,
// or a new one, and that others may have owned slots meanwhile: then views go on beyond that one,
// with a history of their own, so that no server keeps anything from before.
//
// Invariant: views are published in (term, epoch) order and no (term, epoch) twice; an answer is
// given only after its change is in the store. Bound: those of Membership, NamespaceRegistry and
// ControllerStore.
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/controller_store.h"
#include "mp_controller/membership.h"
#include "mp_controller/namespace_registry.h"
#include "mp_controller/view_publisher.h"

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
class AcceptLossRequest;
class AcceptLossReply;
class CreateNamespaceRequest;
class GetNamespaceRequest;
class ListNamespacesRequest;
class ListNamespacesReply;
class UpdateNamespaceRequest;
class DeleteNamespaceRequest;
class DeleteNamespaceReply;
class Namespace;
}  // namespace ems::v1

namespace ems::controller {

// All pointers must outlive the object. Threading: one thread (the controller's loop).
class ClusterState final {
 public:
  struct Parts {
    const Clock* clock;
    ControllerStore* store;
    ViewPublisher* publisher;
    ControllerMetrics* metrics;
  };
  ClusterState(const MembershipOptions& options, const Parts& parts);

  // Loads the store, takes the next term, makes `default_namespace` (unless empty) at the very
  // first start, and publishes the stored owners under the new term. Errors: of the store;
  // kResourceExhausted  no term left
  Status Start(const std::string& default_namespace);
  // Servers can reach this controller from now on: until then no lease ends of those that the store
  // had.
  void Listen() { membership_.Listen(parts_.clock->Now()); }
  // Ends leases and publishes what follows from it. Call at least ten times a second.
  void Tick();

  Status Register(const v1::RegisterRequest& request, v1::RegisterReply* reply);
  Status Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply);
  Status Leave(const v1::LeaveRequest& request, v1::LeaveReply* reply);
  Status ListNodes(const v1::ListNodesRequest& request, v1::ListNodesReply* reply);
  Status RemoveNode(const v1::RemoveNodeRequest& request, v1::RemoveNodeReply* reply);
  Status AcceptLoss(const v1::AcceptLossRequest& request, v1::AcceptLossReply* reply);
  Status CreateNamespace(const v1::CreateNamespaceRequest& request, v1::Namespace* reply);
  Status GetNamespace(const v1::GetNamespaceRequest& request, v1::Namespace* reply);
  Status ListNamespaces(const v1::ListNamespacesRequest& request, v1::ListNamespacesReply* reply);
  Status UpdateNamespace(const v1::UpdateNamespaceRequest& request, v1::Namespace* reply);
  Status DeleteNamespace(const v1::DeleteNamespaceRequest& request,
                         v1::DeleteNamespaceReply* reply);

 private:
  Status AddNode(const std::string& name);
  // Makes `change` durable, takes it over and publishes the table.
  Status Commit(const NamespaceChange& change);
  // Makes the next view durable and publishes it. With `history_ends_` it begins a new history.
  Status PublishView(std::vector<NodeInfo> nodes, const SlotTable& slots, bool frozen);
  Status PublishProposal(const Proposal& proposal);
  // Whether this store can have made that view.
  bool Knows(ViewVersion installed) const;
  void OnUnknownView(NodeId id, ViewVersion installed);
  Status BeginAnewBeyond(ViewVersion installed);
  void LogFreeze(const Proposal& proposal) const;
  Status Counted(const Status& store_status) const;

  const MembershipOptions options_;
  const Parts parts_;
  Membership membership_;
  NamespaceRegistry namespaces_;
  ViewCache::View view_;
  ViewCache::View stored_view_;  // the one before the first of this start
  uint64_t term_ = 0;
  uint64_t epoch_ = 0;  // highest ever tried
  uint32_t next_node_id_ = 1;
  bool publish_failing_ = false;
  uint64_t known_epoch_ = 0;   // highest that an earlier term can have
  bool history_ends_ = false;  // with the next view
  bool began_anew_ = false;
};

}  // namespace ems::controller
