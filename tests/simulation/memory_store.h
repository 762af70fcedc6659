#pragma once
// A ClusterStore without a disk: what was written before a crash is there after it, or an older
// copy of it is.
#include <memory>
#include <string>
#include <vector>

#include "mp_controller/cluster_store.h"

namespace ems::simulation {

// Threading: one thread.
class MemoryStore final : public controller::ClusterStore {
 public:
  // `keeps_open_views`: the views in the window fit; else the oldest of them go.
  explicit MemoryStore(bool keeps_open_views) : keeps_open_views_(keeps_open_views) {}
  Result<controller::StoredState> Load() override { return state_; }
  Status PutCluster(ClusterId cluster) override;
  Status PutTerm(uint64_t term) override;
  Status PutTimes(const controller::GivenTimes& given) override;
  Status PutView(const std::shared_ptr<const DhtView>& view,
                 const controller::ViewWindow& window) override;
  Status PutNode(const controller::StoredNode& node, uint32_t next_node_id) override;
  Status DeleteNode(const std::string& name) override;
  Status PutNamespace(const controller::NamespaceChange& change) override;

  void Backup() { backup_ = state_; }
  void Restore() { state_ = backup_; }

 private:
  const bool keeps_open_views_;
  controller::StoredState state_, backup_;
};

}  // namespace ems::simulation
