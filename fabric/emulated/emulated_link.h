#pragma once
// Links that carry so many bytes a second and no more: transfers take turns on them, and learn when
// their bytes are through.
//
// EMULATED, and without a clock: a link is arithmetic on the moments it is given. Who gives it
// moments of a virtual clock simulates; who gives it real ones and sleeps until the answer
// (common/sleep.h) paces real copies. A moment that was slept too long is not lost: the next piece
// is ready when the last one was due, not when its thread woke up.
//
// It emulates, it does not protect: a cap that leaves bandwidth to others lets bursts through
// (model_files/source/bandwidth_cap.h), a link never does.
//
// Invariant: pieces pass one after the other, in the order of asking; so transfers that ask for
// pieces of equal size by turns share the bandwidth equally.
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "fabric/emulated/link_model.h"

namespace ems::fabric {

// One direction of one part of the machine. Threading: thread-safe.
class EmulatedLink final {
 public:
  explicit EmulatedLink(uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  EmulatedLink(const EmulatedLink&) = delete;
  EmulatedLink& operator=(const EmulatedLink&) = delete;

  uint64_t bytes_per_s() const { return bytes_per_s_; }
  // The moment at which `bytes` are through that are ready at `ready` and go behind all that asked
  // before. `ready` must not lie ahead of what others are about to ask with.
  // Cost: O(1), one leaf lock.
  TimePoint Reserve(uint64_t bytes, TimePoint ready);
  // All that was ever reserved.
  uint64_t bytes_carried() const { return carried_.load(std::memory_order_relaxed); }

 private:
  struct Queue {
    TimePoint free_at{};  // when all that was reserved is through
    double spare_ns = 0;  // what rounding `free_at` to nanoseconds left out
  };
  const uint64_t bytes_per_s_;
  Guarded<Queue> queue_;
  std::atomic<uint64_t> carried_{0};
};

// The links that one kind of transfer passes at once, and what it takes besides. The links must
// outlive it. Threading: immutable.
class EmulatedPath final {
 public:
  EmulatedPath() = default;
  EmulatedPath(std::vector<EmulatedLink*> links, Duration base_latency);

  // Of the slowest link; 0: no link at all, nothing is paced.
  uint64_t bytes_per_s() const { return bytes_per_s_; }
  Duration base_latency() const { return base_latency_; }
  // Transfers in pieces of this size share fairly: about half a millisecond, 4 KiB to 1 MiB.
  uint64_t piece_bytes() const { return piece_bytes_; }
  // Of a transfer that has the path to itself. Pure.
  Duration TimeOf(uint64_t bytes) const {
    return base_latency_ + (links_.empty() ? Duration::zero() : TimeAt(bytes, bytes_per_s_));
  }

 private:
  friend class EmulatedTransfer;
  std::vector<EmulatedLink*> links_;
  Duration base_latency_{0};
  uint64_t bytes_per_s_ = 0;
  uint64_t piece_bytes_ = 0;
};

// One transfer over a path, piece by piece. Threading: one thread.
class EmulatedTransfer final {
 public:
  // It begins at `ready`. `path` must outlive it.
  EmulatedTransfer(const EmulatedPath* path, TimePoint ready) : path_(path), due_(ready) {}

  // Sends a piece behind those before: the moment at which it has left. The next one asks no
  // earlier than then, or it takes more than its share.
  TimePoint Add(uint64_t bytes);
  // When the last piece has left.
  TimePoint due() const { return due_; }
  // When it has arrived.
  TimePoint arrival() const { return due_ + path_->base_latency(); }

 private:
  const EmulatedPath* const path_;
  TimePoint due_;
};

}  // namespace ems::fabric
