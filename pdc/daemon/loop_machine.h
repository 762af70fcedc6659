#pragma once
// The emulated machine under a process of the serving loop: an NPU die with HBM for each worker,
// and the planes that KV passes.
//
// EMULATED: see fabric/emulated/npu_device.h and fabric/emulated/topology.h. The engine is the
// kernels of the device, so it sees HBM as they do (NpuDevice::KernelView). A store that loads
// blocks into this memory, or saves them out of it, stands for the device's SDMA engine, which
// would read and write the pool one-sided over UB; the thread that calls it is that engine's, and a
// PacedStore gives it the engine's pace. So does a ring that hands KV over to another device
// (kv_handoff.h). The host's processor verifies checksums on the way, where an NPU would have to.
// The pool is one CPU's memory: a real pool is spread over all nodes, so that a die's own port is
// what limits it; here several dies that read at once also share that CPU's port of 160 GB/s.
// Without planes nothing is paced.
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_context/block_store.h"
#include "fabric/emulated/emulated_fabric.h"
#include "fabric/emulated/npu_device.h"
#include "pdc/kv/paced_store.h"

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
  MutableBytes memory(uint32_t worker) const { return hbm_[worker]; }
  // The pool as that worker reaches it; null without one.
  context::BlockStore* store(uint32_t worker) const;
  // What KV passes from one prefill worker to one decode worker; null: not paced.
  const fabric::EmulatedPath* HandoffPath(uint32_t prefill, uint32_t decode) const;

 private:
  LoopMachine() = default;
  context::BlockStore* pool_ = nullptr;
  std::unique_ptr<fabric::NpuDevice> device_;
  std::vector<MutableBytes> hbm_;  // by worker; prefill workers first
  std::unique_ptr<fabric::EmulatedFabric> fabric_;
  std::vector<std::unique_ptr<PacedStore>> stores_;                 // by worker; empty: not paced
  std::vector<std::vector<const fabric::EmulatedPath*>> handoffs_;  // [prefill][decode]; or empty
};

}  // namespace ems::pdc
