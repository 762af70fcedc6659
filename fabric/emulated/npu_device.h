#pragma once
// An emulated NPU: memory of its own (HBM) that the host reaches only through SDMA, streams of
// copies, events.
//
// EMULATED: there is no NPU here. HBM is anonymous memory of this process that nobody gets a
// pointer to but what stands for the device itself, holders of a KernelView; an SDMA queue is a
// thread that copies.
// Both behave as the interface says, in order within a stream and in none between streams, and
// take as long as memcpy does, or as the emulated link that a copy is given says (emulated_link.h).
// Bound: hbm_bytes of memory, taken when it is touched first; kQueuedMax works a stream.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/emulated/emulated_link.h"

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
  // Cost: one load: may be looked at again and again.
  bool done() const { return done_.load(std::memory_order_acquire); }
  // False: the time was over first.
  bool Wait(Duration timeout) { return happened_.WaitFor(timeout); }

 private:
  friend class NpuStream;
  StopFlag happened_;
  std::atomic<bool> done_{false};  // follows happened_ without its lock
};
using NpuEventPtr = std::shared_ptr<NpuEvent>;

class NpuDevice;

// A queue of copies, in order, on an SDMA engine of the device. Ends what is queued when it goes.
//
// A copy may be given a path: then it takes what the path says. The copies of a stream follow each
// other over the path without a gap; each has arrived the path's latency after it has left. Events
// wait for that. A stream that lags behind (its thread was not woken in time) catches up.
// Threading: thread-safe.
class NpuStream final {
 public:
  static constexpr size_t kQueuedMax = 4096;

  // `path`: of copies that are given none. It must outlive the stream, as each copy's own path
  // must.
  explicit NpuStream(NpuDevice* device, const EmulatedPath* path = nullptr);
  ~NpuStream();
  NpuStream(const NpuStream&) = delete;
  NpuStream& operator=(const NpuStream&) = delete;

  // Copies between registered memory and HBM. The host's memory must stay until an event recorded
  // later has happened. Waits for room in the queue.
  // Errors: kOutOfRange  not inside of HBM
  Status CopyIn(HbmAddress to, ConstBytes from, const EmulatedPath* path = nullptr);
  Status CopyOut(MutableBytes to, HbmAddress from, const EmulatedPath* path = nullptr);
  // To the HBM of another device of this process, which must outlive the copy, or within this one.
  // The ranges must not overlap. Errors: kOutOfRange  not inside of the HBM of either
  Status CopyAcross(NpuDevice* to_device, HbmAddress to, HbmAddress from, uint64_t bytes,
                    const EmulatedPath* path = nullptr);
  // Happens once everything queued before is done.
  NpuEventPtr Record();
  // Waits for all that is queued. False: the time was over first.
  bool Synchronize(Duration timeout) { return Record()->Wait(timeout); }

 private:
  struct Work {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    const EmulatedPath* path = nullptr;
    NpuEventPtr event{};  // instead of a copy
    TimePoint queued_at{};
  };
  struct State {
    std::deque<Work> queued;
    bool stopping = false;
  };
  // Of the stream's thread: in the time of the emulated links.
  struct Timing {
    TimePoint due{};      // when the copies so far have left
    TimePoint arrival{};  // and have arrived
  };
  void Push(Work work);
  void Run();
  static void Copy(const Work& work, Timing* timing);

  NpuDevice* const device_;
  const EmulatedPath* const default_path_;
  Guarded<State> state_;
  std::condition_variable wakeup_, room_;
  Thread engine_;
};

// Threading: thread-safe.
class NpuDevice final {
 public:
  struct Options {
    uint64_t hbm_bytes = 0;
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

  // HBM as what stands for the device's own kernels and engines sees it (pdc/daemon/loop_machine.h
  // says what does); not for host code, which hardware would not let near it. Errors: kOutOfRange
  Result<MutableBytes> KernelView(HbmAddress address, uint64_t bytes);

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
