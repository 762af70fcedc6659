#pragma once
// An emulated NPU: memory of its own (HBM) that the host reaches only through SDMA, streams of
// copies, events.
//
// There is no NPU here. HBM is anonymous memory of this process that nobody gets a pointer to; an
// SDMA queue is a thread that copies. Both behave as the interface promises, in order within a
// stream and in none between streams, and take as long as memcpy does, or as `bytes_per_s` says.
// Bound: hbm_bytes of memory, taken when it is touched first; kQueuedMax copies a stream.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"

namespace ems::fabric {

// An address in the HBM of one device. Not a pointer.
struct HbmAddress {
  uint64_t offset = 0;
  HbmAddress operator+(uint64_t bytes) const { return {offset + bytes}; }
  friend bool operator==(const HbmAddress&, const HbmAddress&) = default;
};

// Something that happens on a stream once what was queued before it is done. Shared. Threading:
// thread-safe.
class NpuEvent final {
 public:
  bool done() { return happened_.IsSet(); }
  // False: the time was over first.
  bool Wait(Duration timeout) { return happened_.WaitFor(timeout); }

 private:
  friend class NpuStream;
  StopFlag happened_;
};
using NpuEventPtr = std::shared_ptr<NpuEvent>;

class NpuDevice;

// A queue of copies, in order, on an SDMA engine of the device. Ends what is queued when it goes.
// Threading: thread-safe.
class NpuStream final {
 public:
  static constexpr size_t kQueuedMax = 4096;

  explicit NpuStream(NpuDevice* device);
  ~NpuStream();
  NpuStream(const NpuStream&) = delete;
  NpuStream& operator=(const NpuStream&) = delete;

  // Copies between registered memory and HBM. The host's memory must stay until an event recorded
  // later has happened. Waits for room in the queue.
  // Errors: kOutOfRange  not inside of HBM
  Status CopyIn(HbmAddress to, ConstBytes from);
  Status CopyOut(MutableBytes to, HbmAddress from);
  // Happens once everything queued before is done.
  NpuEventPtr Record();
  // Waits for all that is queued. False: the time was over first.
  bool Synchronize(Duration timeout) { return Record()->Wait(timeout); }

 private:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    NpuEventPtr event;  // instead of a copy
  };
  struct State {
    std::deque<Copy> queued;
    bool stopping = false;
  };
  void Push(Copy copy);
  void Run();

  NpuDevice* const device_;
  Guarded<State> state_;
  std::condition_variable wakeup_, room_;
  Thread engine_;
};

// Threading: thread-safe.
class NpuDevice final {
 public:
  struct Options {
    uint64_t hbm_bytes = 0;
    uint64_t bytes_per_s = 0;  // of one stream; 0: as fast as it goes
  };
  // Errors: kResourceExhausted  no such memory    kInvalidArgument  no HBM at all
  static Result<std::unique_ptr<NpuDevice>> Create(const Options& options);
  ~NpuDevice();
  NpuDevice(const NpuDevice&) = delete;
  NpuDevice& operator=(const NpuDevice&) = delete;

  // A piece of HBM, 512-byte aligned. Errors: kResourceExhausted  says how much is free
  Result<HbmAddress> Allocate(uint64_t bytes);
  // Of what Allocate gave; nothing of it may be under way on a stream.
  void Free(HbmAddress address);
  uint64_t free_bytes();

 private:
  friend class NpuStream;
  explicit NpuDevice(const Options& options, std::byte* hbm) : options_(options), hbm_(hbm) {}
  // Errors: kOutOfRange
  Status Check(HbmAddress address, uint64_t bytes) const;

  struct Arena {
    std::map<uint64_t, uint64_t> free;  // offset → bytes; neighbours are joined
    std::map<uint64_t, uint64_t> taken;
  };
  const Options options_;
  std::byte* const hbm_;
  Guarded<Arena> arena_;
};

}  // namespace ems::fabric
