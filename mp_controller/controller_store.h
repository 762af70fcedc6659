#pragma once
// What of the cluster must survive kill -9: term, views, nodes, namespaces. Every write is synced
// before it returns.
//
// Invariant: a term handed out by a store is never handed out again; the last kViewsKept views are
// there. Bound: at most kKnownNodesMax nodes, kNamespacesMax namespaces and kViewsKept views.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "mp_controller/namespace_registry.h"
#include "mp_controller/view/dht_view.h"

namespace ems::controller {

inline constexpr size_t kViewsKept = 16;

struct StoredNode {
  NodeId id;
  std::string name;
};

// What a start finds.
struct StoredState {
  uint64_t term = 0;   // 0: first start
  uint64_t epoch = 0;  // the highest one ever used
  uint32_t next_node_id = 1;
  uint32_t next_namespace_id = 1;
  uint64_t namespaces_version = 0;
  std::vector<StoredNode> nodes;
  std::vector<NamespaceInfo> namespaces;
  std::shared_ptr<const DhtView> view;  // newest; null: none yet
};

// Threading: one thread (the controller's loop).
class ControllerStore final {
 public:
  // Opens the store in `folder` and makes it when the folder has never held one.
  // Errors: kFailedPrecondition  another process has it open    kDataLoss  damaged: refuses rather
  // than guesses
  //         kUnavailable  the folder cannot be used
  static Result<std::unique_ptr<ControllerStore>> Open(const std::string& folder);
  ~ControllerStore();
  ControllerStore(const ControllerStore&) = delete;
  ControllerStore& operator=(const ControllerStore&) = delete;

  // Errors: kDataLoss  a record that cannot be read
  Result<StoredState> Load();

  // Each is durable when it returns OK. When it does not, a restart may or may not find it; without
  // one it has not happened. Cost: one fsync.
  // Errors: kUnavailable  the disk refuses; a later call tries again, after a second at
  // first and every 15 s at most
  Status PutTerm(uint64_t term);
  // The view and its epoch; views older than the last kViewsKept go.
  Status PutView(const DhtView& view);
  Status PutNode(const StoredNode& node, uint32_t next_node_id);
  Status DeleteNode(const std::string& name);
  Status PutNamespace(const NamespaceChange& change);

 private:
  struct Impl;
  explicit ControllerStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::controller
