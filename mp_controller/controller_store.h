#pragma once
// The ClusterStore of a running controller: cluster id, term, views, nodes and namespaces survive
// kill -9. Every write is durable before it returns.
//
// Invariant: a term handed out by a store is never handed out again; the newest view is there, and
// each that was open when it was written. Bound: at most kNodesMax + kGoneNodesMax nodes,
// kNamespacesMax namespaces and kViewsKept views.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "common/status.h"
#include "mp_controller/cluster_store.h"

namespace ems::controller {

class RowStore;
struct RowChange;

// Threading: one thread (the controller's loop).
class ControllerStore final : public ClusterStore {
 public:
  // Opens the store in `folder` and makes it when the folder has never held one.
  // Errors: kFailedPrecondition  another process has it open    kDataLoss  damaged: refuses rather
  // than guesses
  //         kUnavailable  the folder cannot be used
  static Result<std::unique_ptr<ControllerStore>> Open(const std::string& folder);
  explicit ControllerStore(std::unique_ptr<RowStore> rows);
  ~ControllerStore() override;
  ControllerStore(const ControllerStore&) = delete;
  ControllerStore& operator=(const ControllerStore&) = delete;

  Result<StoredState> Load() override;
  Status PutCluster(ClusterId cluster) override;
  Status PutTimes(const GivenTimes& given) override;
  Status PutTerm(uint64_t term) override;
  Status PutView(const std::shared_ptr<const DhtView>& view, const ViewWindow& window) override;
  Status PutWindow(const ViewWindow& window) override;
  Status PutNode(const StoredNode& node, uint32_t next_node_id) override;
  Status DeleteNode(const std::string& name) override;
  Status PutNamespace(const NamespaceChange& change) override;

 private:
  // Adds to `change` what the window says of the views that are there; the keys of those that stay.
  std::deque<std::string> KeepOpen(const ViewWindow& window, RowChange* change) const;

  const std::unique_ptr<RowStore> rows_;
  std::deque<std::string> view_keys_;  // of the views that are kept, oldest first
};

}  // namespace ems::controller
