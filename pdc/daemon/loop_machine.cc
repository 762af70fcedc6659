#include "pdc/daemon/loop_machine.h"

#include <algorithm>

#include "common/check.h"
#include "proto/config.pb.h"

namespace ems::pdc {

Result<std::unique_ptr<LoopMachine>> LoopMachine::Create(const config::PdcConfig& config,
                                                         uint32_t prefills, uint32_t decodes,
                                                         context::BlockStore* pool) {
  std::unique_ptr<LoopMachine> machine(new LoopMachine());
  machine->pool_ = pool;
  const uint32_t workers = prefills + decodes;
  // One device stands for all dies: their HBM is apart, and so are their links.
  const uint64_t bytes = RoundUp(config.kv().bytes(), 4 * kKiB);
  EMS_ASSIGN_OR_RETURN(machine->device_, fabric::NpuDevice::Create({.hbm_bytes = bytes * workers}));
  for (uint32_t i = 0; i < workers; ++i) {
    EMS_ASSIGN_OR_RETURN(const fabric::HbmAddress at, machine->device_->Allocate(bytes));
    EMS_ASSIGN_OR_RETURN(const MutableBytes hbm, machine->device_->KernelView(at, bytes));
    machine->hbm_.push_back(hbm);
  }
  const bool pool_plane = config.pool().plane() != "off", kv_plane = config.kv().plane() != "off";
  if (!pool_plane && !kv_plane) return machine;

  EMS_ASSIGN_OR_RETURN(const auto links,
                       fabric::EmulatedLinkModel::Create(config.kv().plane_scale()));
  EMS_ASSIGN_OR_RETURN(const auto topology, fabric::EmulatedTopology::Create({}, links));
  // A process that only prefills does not know of its decode workers' dies: one stands for them.
  const uint32_t receivers = std::max(decodes, 1U);
  if (prefills + receivers > topology.dies())
    return Error(StatusCode::kInvalidArgument, "{} prefill and {} decode workers on {} dies",
                 prefills, receivers, topology.dies());
  machine->fabric_ = std::make_unique<fabric::EmulatedFabric>(topology);
  const auto plane = config.pool().plane() == "vpc" ? fabric::Plane::kVpc : fabric::Plane::kUb;
  for (uint32_t i = 0; i < workers && pool_plane && pool != nullptr; ++i) {
    EMS_ASSIGN_OR_RETURN(const PoolPaths paths,
                         PathsToPool(machine->fabric_.get(), topology.DieAt(i), plane));
    machine->stores_.push_back(std::make_unique<PacedStore>(pool, paths));
  }
  for (uint32_t i = 0; i < prefills && kv_plane; ++i) {
    auto& paths = machine->handoffs_.emplace_back();
    for (uint32_t j = 0; j < receivers; ++j) {
      // The sender writes (fabric/emulated/ring_sender.h).
      EMS_ASSIGN_OR_RETURN(
          const auto* path,
          machine->fabric_->Path(fabric::Plane::kRdma, topology.DieAt(i),
                                 topology.DieAt(prefills + j), fabric::Access::kWrite));
      paths.push_back(path);
    }
  }
  return machine;
}

context::BlockStore* LoopMachine::store(uint32_t worker) const {
  EMS_CHECK(worker < hbm_.size(), "worker {} of {}", worker, hbm_.size());
  return stores_.empty() ? pool_ : stores_[worker].get();
}

const fabric::EmulatedPath* LoopMachine::HandoffPath(uint32_t prefill, uint32_t decode) const {
  if (handoffs_.empty()) return nullptr;
  EMS_CHECK(prefill < handoffs_.size() && decode < handoffs_[prefill].size(),
            "a hand-over from prefill worker {} to decode worker {}", prefill, decode);
  return handoffs_[prefill][decode];
}

}  // namespace ems::pdc
