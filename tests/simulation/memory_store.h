#pragma once
// A ClusterStore without a disk: what was written before a crash is there after it, or an older
// copy of it is. Writes may fail, and what the last one wanted may be found by a start all the
// same.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mp_controller/cluster_store.h"

namespace ems::simulation {

// Threading: one thread.
class MemoryStore final : public controller::ClusterStore {
 public:
  struct Hooks {
    std::function<bool()> fails;  // whether the write that is made now does
    std::function<bool()> found;  // whether a start finds what failed
  };
  // `keeps_open_views`: the views in the window fit; else the oldest of them go.
  MemoryStore(bool keeps_open_views, Hooks hooks)
      : keeps_open_views_(keeps_open_views), hooks_(std::move(hooks)) {}
  Result<controller::StoredState> Load() override;
  Status PutCluster(ClusterId cluster) override;
  Status PutTerm(uint64_t term) override;
  Status PutTimes(const controller::GivenTimes& given) override;
  Status PutWindow(const controller::ViewWindow& window) override;
  Status PutView(const std::shared_ptr<const DhtView>& view,
                 const controller::ViewWindow& window) override;
  Status PutNode(const controller::StoredNode& node, uint32_t next_node_id) override;
  Status DeleteNode(const std::string& name) override;
  Status PutNamespace(const controller::NamespaceChange& change) override;

  void Backup() { backup_ = state_; }
  void Restore() {
    state_ = backup_;
    failed_.reset();
  }

 private:
  Status Write(const std::function<void(controller::StoredState*)>& change);

  const bool keeps_open_views_;
  const Hooks hooks_;
  controller::StoredState state_, backup_;
  std::optional<controller::StoredState> failed_;  // with what the last write wanted
};

}  // namespace ems::simulation
