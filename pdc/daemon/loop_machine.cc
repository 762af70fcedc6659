#include "pdc/daemon/loop_machine.h"

#include <utility>

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
    EMS_ASSIGN_OR_RETURN(Hbm hbm, Hbm::Take(machine->device_.get(), bytes));
    machine->hbm_.push_back(std::move(hbm));
  }
  const bool pool_plane = config.pool().plane() != "off", kv_plane = config.kv().plane() != "off";
  if (!pool_plane && !kv_plane) return machine;

  EMS_ASSIGN_OR_RETURN(const auto links,
                       fabric::EmulatedLinkModel::Create(config.kv().plane_scale()));
  EMS_ASSIGN_OR_RETURN(const auto topology, fabric::EmulatedTopology::Create({}, links));
  machine->fabric_ = std::make_unique<fabric::EmulatedFabric>(topology);
  const int decode_ranks = static_cast<int>(std::max(decodes, 1U));
  const auto plane = config.pool().plane() == "vpc" ? fabric::Plane::kVpc : fabric::Plane::kUb;
  for (uint32_t i = 0; i < workers && pool_plane && pool != nullptr; ++i) {
    EMS_ASSIGN_OR_RETURN(
        const auto planes,
        WorkerPlanes::Make(machine->fabric_.get(), {.prefill_die = i, .decode_die = workers}));
    EMS_ASSIGN_OR_RETURN(const PoolPaths paths, planes.PoolOf(planes.PrefillDie(0), plane));
    machine->stores_.push_back(std::make_unique<PacedStore>(pool, paths));
  }
  for (uint32_t i = 0; i < prefills && kv_plane; ++i) {
    EMS_ASSIGN_OR_RETURN(
        const auto planes,
        WorkerPlanes::Make(
            machine->fabric_.get(),
            {.shape = {.decode_dp = decode_ranks}, .prefill_die = i, .decode_die = prefills}));
    auto& paths = machine->handoffs_.emplace_back();
    for (int j = 0; j < decode_ranks; ++j) {
      EMS_ASSIGN_OR_RETURN(const auto* path, planes.HandoffTo({.dp = j}));
      paths.push_back(path);
    }
  }
  return machine;
}

context::BlockStore* LoopMachine::store(uint32_t worker) const {
  return stores_.empty() ? pool_ : stores_[worker].get();
}

const fabric::EmulatedPath* LoopMachine::HandoffPath(uint32_t prefill, uint32_t decode) const {
  return handoffs_.empty() ? nullptr : handoffs_[prefill][decode];
}

}  // namespace ems::pdc
