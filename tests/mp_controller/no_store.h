#pragma once
// A store that keeps nothing, for what does not outlive the process.
#include <memory>
#include <string>

#include "mp_controller/cluster_store.h"

namespace ems::controller {

struct NoStore : ClusterStore {
  Result<StoredState> Load() override { return StoredState{}; }
  Status PutCluster(ClusterId) override { return OkStatus(); }
  Status PutTerm(uint64_t) override { return OkStatus(); }
  Status PutTimes(const GivenTimes&) override { return OkStatus(); }
  Status PutWindow(const ViewWindow&) override { return OkStatus(); }
  Status PutView(const std::shared_ptr<const DhtView>&, const ViewWindow&) override {
    return OkStatus();
  }
  Status PutNode(const StoredNode&, uint32_t) override { return OkStatus(); }
  Status DeleteNode(const std::string&) override { return OkStatus(); }
  Status PutNamespace(const NamespaceChange&) override { return OkStatus(); }
};

}  // namespace ems::controller
