#pragma once
// A piece of an emulated NPU's HBM as memory for a worker's KV (KvArena), given back when it goes.
//
// EMULATED, and that is what stands for what: the engine is the kernels of the device, so it sees
// HBM as they do (NpuDevice::KernelView). A store that loads blocks into this memory, or saves them
// out of it, stands for the device's SDMA engine, which would read and write the pool one-sided
// over UB; the thread that calls it is that engine's, and a PacedStore gives it the engine's pace.
// So does a ring that hands KV over to another device (kv_handoff.h). All of them go by this view
// instead of a stream's copies, and the host's processor verifies checksums on the way, where an
// NPU would have to. Nothing else of the host looks in here.
#include <utility>

#include "common/bytes.h"
#include "common/status.h"
#include "fabric/npu_device.h"

namespace ems::pdc {

// Move-only. Threading: one thread (holder); the memory is for whom it is given to.
class Hbm final {
 public:
  // `device` must outlive this. Contents are undefined. Errors: kResourceExhausted  says how much
  // is free    kInvalidArgument  no bytes
  static Result<Hbm> Take(fabric::NpuDevice* device, uint64_t bytes);
  Hbm(Hbm&& other) noexcept;
  Hbm& operator=(Hbm&& other) noexcept;
  Hbm(const Hbm&) = delete;
  Hbm& operator=(const Hbm&) = delete;
  // Nobody may use the memory any more: workers over it go first.
  ~Hbm() { Free(); }

  // 512-byte aligned. Lives as long as this, wherever it is moved.
  MutableBytes memory() const { return memory_; }
  // The same for copies of a stream.
  fabric::HbmAddress address() const { return address_; }

 private:
  Hbm(fabric::NpuDevice* device, fabric::HbmAddress address, MutableBytes memory)
      : device_(device), address_(address), memory_(memory) {}
  void Free();

  fabric::NpuDevice* device_;  // null: moved away
  fabric::HbmAddress address_;
  MutableBytes memory_;
};

}  // namespace ems::pdc
