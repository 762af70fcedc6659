#pragma once
// The emulated machine under a process of the serving loop: an NPU die with HBM for each worker,
// and the planes that KV passes.
//
// EMULATED: see fabric/npu_device.h and fabric/topology.h. Without planes nothing is paced.
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_context/block_store.h"
#include "fabric/emulated_fabric.h"
#include "fabric/npu_device.h"
#include "pdc/hbm.h"
#include "pdc/paced_store.h"
#include "pdc/worker_planes.h"

namespace ems::config {
class PdcConfig;
}

namespace ems::pdc {

// Dies of a process are numbered: its prefill workers' come first, then its decode workers'. In
// several processes each has a machine of its own, as each node would.
// Threading: one thread builds; the parts are thread-safe.
class LoopMachine final {
 public:
  // `prefills`, `decodes`: workers of this process. `pool` is null without a pool; it must outlive
  // this. Errors: kInvalidArgument  more workers than the machine has dies    kResourceExhausted
  static Result<std::unique_ptr<LoopMachine>> Create(const config::PdcConfig& config,
                                                     uint32_t prefills, uint32_t decodes,
                                                     context::BlockStore* pool);

  // HBM for a worker's KV.
  MutableBytes memory(uint32_t worker) const { return hbm_[worker].memory(); }
  // The pool as that worker reaches it; null without one.
  context::BlockStore* store(uint32_t worker) const;
  // What KV passes from one prefill worker to one decode worker; null: not paced.
  const fabric::EmulatedPath* HandoffPath(uint32_t prefill, uint32_t decode) const;

 private:
  LoopMachine() = default;
  context::BlockStore* pool_ = nullptr;
  std::unique_ptr<fabric::NpuDevice> device_;
  std::vector<Hbm> hbm_;  // by worker; prefill workers first
  std::unique_ptr<fabric::EmulatedFabric> fabric_;
  std::vector<std::unique_ptr<PacedStore>> stores_;                 // by worker; empty: not paced
  std::vector<std::vector<const fabric::EmulatedPath*>> handoffs_;  // [prefill][decode]; or empty
};

}  // namespace ems::pdc
