#pragma once
// What of the cluster must outlive the controller's process, and where ClusterState keeps it.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "common/cluster_id.h"
#include "common/status.h"
#include "mp_controller/membership.h"
#include "mp_controller/namespace_registry.h"

namespace ems::controller {

inline constexpr size_t kViewsKept = 16;

struct StoredNode {
  NodeId id;
  std::string name;
  uint64_t stopped_boot_id = 0;  // of the last process that stopped in order; 0: none
  bool left = false;             // that one took its leave, and no other has come since
  NodeTimes times = {};
  uint64_t dram_bytes = 0;  // what an operator has set; 0: nothing
  bool drained = false;     // an operator takes it out
};

// Views that matter still (activation.h).
struct ViewWindow {
  std::vector<ViewVersion> open;  // oldest first
  ViewVersion active;
  friend bool operator==(const ViewWindow&, const ViewWindow&) = default;
};

// What servers go by. 0 in the store of an older controller.
struct GivenTimes {
  uint64_t lease_ms = 0;
  uint64_t heartbeat_ms = 0;
  friend bool operator==(const GivenTimes&, const GivenTimes&) = default;
};

// What a start finds.
struct StoredState {
  ClusterId cluster;   // kNoCluster: first start, or the store of an older controller
  uint64_t term = 0;   // 0: first start
  uint64_t epoch = 0;  // the highest one ever used
  uint32_t next_node_id = 1;
  uint32_t next_namespace_id = 1;
  uint64_t namespaces_version = 0;
  std::vector<StoredNode> nodes;
  std::vector<NamespaceInfo> namespaces;
  std::vector<std::shared_ptr<const DhtView>> views;  // oldest first, at most kViewsKept
  ViewVersion active;                                 // one of them, or an earlier one
  GivenTimes given;                                   // no server goes by longer ones
};

// Threading: one thread (the controller's loop).
class ClusterStore {
 public:
  virtual ~ClusterStore() = default;
  // Errors: kDataLoss  a record that cannot be read
  virtual Result<StoredState> Load() = 0;

  // Each is durable when it returns OK. When it does not, a restart may or may not find it; without
  // one it has not happened. Cost: one fsync.
  // Errors: kUnavailable  the disk refuses; a later call tries again, after a second at
  // first and every 15 s at most
  // Once, before anything is published.
  virtual Status PutCluster(ClusterId cluster) = 0;
  virtual Status PutTerm(uint64_t term) = 0;
  // Before the first answer with these, and when no server can go by longer ones.
  virtual Status PutTimes(const GivenTimes& given) = 0;
  // The view and its epoch. Views that are not in the window go; fewer than kViewsKept
  // may be in it.
  virtual Status PutView(const std::shared_ptr<const DhtView>& view, const ViewWindow& window) = 0;
  // What has become of the views that are there: the newest is in the window.
  virtual Status PutWindow(const ViewWindow& window) = 0;
  virtual Status PutNode(const StoredNode& node, uint32_t next_node_id) = 0;
  virtual Status DeleteNode(const std::string& name) = 0;
  virtual Status PutNamespace(const NamespaceChange& change) = 0;
};

}  // namespace ems::controller
