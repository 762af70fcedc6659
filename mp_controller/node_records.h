#pragma once
// What is remembered of each server by name, besides who belongs to the cluster (membership.h):
// which of its processes stopped in order, and what an operator has set for it. Made durable first,
// taken over then.
#include <cstdint>
#include <map>

#include "common/status.h"
#include "mp_controller/cluster_store.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/membership.h"
#include "mp_controller/publish/drains.h"

namespace ems::v1 {
class DrainNodeRequest;
class SetNodeRequest;
}  // namespace ems::v1

namespace ems::controller {

// All pointers must outlive the object. Threading: one thread (the controller's loop).
class NodeRecords final {
 public:
  struct Parts {
    ClusterStore* store;
    Membership* membership;
    ControllerMetrics* metrics;
    Drains* drains;
  };
  explicit NodeRecords(const Parts& parts) : parts_(parts) {}

  // Of a start: what the store has of a node that membership knows.
  void Restore(const StoredNode& record) { Remember(record); }
  // As it is stored, of a node that is known.
  StoredNode Of(NodeId id) const;
  uint64_t DramBytes(NodeId id) const;  // that an operator has set; 0: none

  // Errors: of the store; then nothing has changed
  Status Put(const StoredNode& record, uint32_t next_node_id);
  // The same without the store: a restart does not find it.
  void Remember(const StoredNode& record);
  // Errors: also kNotFound  no server of that name    kInvalidArgument  no size that a pool can
  // have
  Status Set(const v1::SetNodeRequest& request, uint32_t next_node_id);
  // Errors: also kNotFound  no server of that name    kFailedPrecondition  no other server of
  // `view` could have its slots
  Status Drain(const v1::DrainNodeRequest& request, const DhtView& view, uint32_t next_node_id);
  void Forget(NodeId id);

 private:
  // Errors: kNotFound
  Result<NodeId> IdOf(const std::string& name) const;

  const Parts parts_;
  std::map<NodeId, uint64_t> stopped_;  // boot ids of the processes that stopped in order last
  std::map<NodeId, uint64_t> dram_;     // bytes that an operator has set
};

}  // namespace ems::controller
