#pragma once
// The server's memory as segments: made and touched ahead of need by a thread of its own, handed
// out whole.
//
// Invariant: a segment that was handed out is never handed out again: Release closes its memfd and
// another one is made, so no byte of one namespace can ever appear in another. Bound: segments
// made, handed out and being closed together ≤ bytes_max(), or soon will be where it has become
// less; at most 8 sizes are waited for.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/shm/shm_segment.h"

namespace ems::server {

using HugePages = fabric::HugePages;

// One memfd and its number, unique while the server runs.
struct Segment {
  uint32_t id = 0;
  fabric::ShmSegment memory;
  std::shared_ptr<const fabric::Fd> read_only;  // of the same file, to be given to clients
  uint64_t size_bytes() const { return memory.size_bytes(); }
};

// Threading: thread-safe.
class SegmentPool final {
 public:
  using CreateSegment =
      std::function<Result<fabric::ShmSegment>(uint64_t bytes, HugePages huge_pages)>;
  struct Options {
    uint64_t bytes = kGiB;
    uint64_t segment_bytes = 64 * kMiB;
    HugePages huge_pages = HugePages::kTry;
    Duration retry_after = std::chrono::seconds(10);  // when the machine refused memory
    // Segments that the process before this one has handed over: they count as handed out from the
    // start, and are given back by Release like others. Numbers begin at `first_id`.
    uint64_t adopted_bytes = 0;
    uint32_t first_id = 1;
    CreateSegment create = &fabric::ShmSegment::Create;
  };
  struct Stats {
    uint64_t bytes_max = 0;      // as Options::bytes or Resize says
    uint64_t bytes_created = 0;  // exist, handed out or not
    uint64_t bytes_held = 0;     // the same, with those that are being made and being closed
    uint64_t bytes_ready = 0;
    uint64_t bytes_in_use = 0;  // handed out
    uint64_t bytes_kept = 0;    // see SetKeptByClients
    uint64_t refused = 0;       // times the machine did not give memory
    bool fell_back = false;     // huge pages were asked for and are not to be had
    fabric::PageKind page_kind = fabric::PageKind::kSmall;  // of the newest segment
  };

  // 130 MiB, at most a seventh of the pool: 128 MiB of objects of a power of two of bytes fit with
  // their heads, what is left over at the end of a segment is small beside it, and seven tenants
  // find a segment. A pool that would have more than kSegmentsMax of them has a multiple of 130 MiB
  // instead, which keeps all of that: descriptors, clients' mappings and searches stay bounded.
  static uint64_t DefaultSegmentBytes(uint64_t pool_bytes);
  static constexpr uint64_t kSegmentsMax = 1024;

  // Starts the thread "ems-mem", which makes segments up to Options::bytes at once.
  explicit SegmentPool(const Options& options);
  // All segments must have come back, or be owned by nobody who uses this pool any more.
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  // A segment of at least `bytes_min`. Larger ones than Options::segment_bytes are made on demand.
  // Cost: one leaf lock; never blocks on memory.
  // Errors: kResourceExhausted  none is ready: it is being prepared, or all memory is handed out
  //   kOutOfRange  larger than the pool
  Result<std::unique_ptr<Segment>> Acquire(uint64_t bytes_min);
  // Takes a segment back; its memory is freed and replaced by the thread.
  void Release(std::unique_ptr<Segment> segment);

  // The pool has `bytes` from now on, a multiple of 2 MiB and at least one segment: more is made,
  // or what is ready is closed. What is handed out stays until it is released: excess_bytes().
  void Resize(uint64_t bytes);
  // Handed out beyond the pool's size: to be released by who has it.
  uint64_t excess_bytes();

  // Memory of segments that came back, but that clients still map: it exists, so so much less is
  // made.
  void SetKeptByClients(uint64_t bytes);

  // Waits until `bytes` (at most bytes_max() are waited for) have been made.
  // Errors: kResourceExhausted  the machine refused, in its words    kDeadlineExceeded
  Status WaitReady(uint64_t bytes, Deadline deadline);

  // True until the pool was complete once, or was refused memory: an empty hand means "soon".
  bool growing();
  // Bytes that are not handed out and could be: ready, being closed or still to be made.
  uint64_t free_bytes();
  Stats stats();
  uint64_t bytes_max() const { return bytes_max_.load(std::memory_order_relaxed); }
  uint64_t segment_bytes() const { return options_.segment_bytes; }
  // Differs for each start of the process.
  uint64_t boot_id() const { return boot_id_; }

 private:
  struct Ready {
    std::unique_ptr<Segment> segment;
    TimePoint since;
  };
  struct Wanted {  // a size above segment_bytes that was asked for
    uint64_t bytes = 0;
    TimePoint until;
  };
  struct State {
    std::vector<Ready> ready;
    std::vector<std::unique_ptr<Segment>> closing;
    std::vector<Wanted> wanted;
    uint64_t created_bytes = 0;  // all that exist or are being made
    uint64_t in_use_bytes = 0;
    uint64_t ready_bytes = 0;
    uint64_t kept_bytes = 0;
    uint64_t refused = 0;
    uint32_t next_id = 1;
    bool complete_once = false;
    bool fell_back = false;
    bool stopping = false;
    bool poked = false;
    fabric::PageKind page_kind = fabric::PageKind::kSmall;
    Status last_error;
    TimePoint retry_at{};
  };

  void Run();
  // What to make next, in bytes; 0: nothing now. May move ready segments to `closing` to make room.
  uint64_t NextBytes(State& state) const;
  uint64_t NextWanted(State& state) const;
  bool Waits(const State& state, const Wanted& wanted) const;
  uint64_t Room(const State& state) const;  // bytes that may be made
  // Bytes that are not handed out and could be, made or not.
  uint64_t Obtainable(const State& state) const;
  void CloseReady(State& state, size_t index) const;
  void Make(uint64_t bytes);
  void OnRefused(uint64_t bytes, const Status& error);
  void Want(State& state, uint64_t bytes) const;

  const Options options_;
  const uint64_t boot_id_;
  std::atomic<uint64_t> bytes_max_;  // written under the lock of state_
  Guarded<State> state_;
  std::condition_variable wakeup_;   // for the thread
  std::condition_variable changed_;  // for WaitReady
  Thread thread_;                    // last: it uses all of the above
};

}  // namespace ems::server
