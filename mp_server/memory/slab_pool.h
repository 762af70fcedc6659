#pragma once
// The memory of one namespace: chunks from slabs of one size class each, and page runs for larger
// objects.
//
// Invariant: every chunk and run belongs to exactly one of {free, ObjectEntry that it names}. Bytes
// of a chunk are touched by its owner alone. A draining slab or segment hands nothing out and goes
// when its last object has. Bound: segments given by Add; the searches below look at a stated
// number of slabs, runs and segments.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/guarded.h"
#include "mp_server/index/object_entry.h"
#include "mp_server/memory/page_runs.h"
#include "mp_server/memory/size_classes.h"
#include "mp_server/memory/slab.h"
#include "mp_server/memory/window_search.h"

namespace ems::server {

// Threading: thread-safe (one leaf lock).
class SlabPool final {
 public:
  struct Stats {
    uint64_t segment_bytes = 0;
    uint64_t kept_bytes = 0;   // of segments that are not draining
    uint64_t chunk_bytes = 0;  // of chunks and runs in use
    uint64_t segments = 0;
    uint64_t leaving_bytes() const { return segment_bytes - kept_bytes; }
  };

  // The memory that could be handed out without an eviction.
  struct Supply {
    uint64_t pages = 0;       // of segments that are not draining
    uint64_t free_pages = 0;  // of them in free runs
    uint64_t idle_bytes = 0;  // free chunks of slabs
    bool fits = false;        // Allocate would find something for the footprint that was asked for
    bool has_run = false;     // a free run of the pages that were asked for
    uint64_t free_bytes() const { return free_pages * kPageBytes + idle_bytes; }
  };

  SlabPool() = default;
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  void Add(std::unique_ptr<Segment> segment);
  // Takes memory for `owner` and fills in its unit, head and payload. `short_slab`: when a new slab
  // is needed and no run of the preferred length is free, a shorter one will do. False: there is
  // none. Cost: O(1); O(chunks of a slab) when a slab is made. No syscall.
  [[nodiscard]] bool Allocate(const Footprint& footprint, bool short_slab, ObjectEntry* owner);
  // Gives the owner's memory back. Returns a segment that was draining and is now empty, for the
  // SegmentPool.
  std::unique_ptr<Segment> Free(ObjectEntry* owner);

  Supply SupplyOf(const Footprint& footprint, uint32_t run_pages);

  // The searches below choose memory to be emptied, mark it so that nothing more is allocated
  // there, and list who is in it; the caller evicts those. They skip what is pinned or being
  // filled. False: nothing was found.

  // The neighbours of a free run that lose least, `pages` with it. Cost: bounded, see WindowSearch.
  bool DrainNear(uint32_t pages, Ages ages, std::vector<Victim>* victims);
  // Any slab of `pages_min` or more; looks at 64 of them, others at each call.
  bool DrainSomeSlab(uint32_t pages_min, std::vector<Victim>* victims);
  // The cheapest window of `pages` neighbouring pages, in bytes to be evicted. Looks at up to 32
  // segments.
  bool DrainWindow(uint32_t pages, std::vector<Victim>* victims);
  // The coldest segment; looks at up to 256, and for pins at one object of each of its first 64
  // runs: others in it may be pinned. An empty one is returned in `empty` at once.
  bool DrainSegment(std::vector<Victim>* victims, std::unique_ptr<Segment>* empty);

  // Who is left in draining slabs and segments: they were held when the others had to go. Up to
  // `count`, others at each call. Cost: O(segments), and O(slabs) while a slab is draining; 4096 at
  // most.
  void Leftovers(size_t count, std::vector<Victim>* victims);
  // Takes out empty segments but `keep` of them.
  std::vector<std::unique_ptr<Segment>> TakeEmpty(size_t keep);
  // From now on every segment goes as soon as it is empty.
  void DrainAll();
  // A read-only descriptor of a segment, the same for all who ask. Cost: O(1), no system call.
  // Errors: kNotFound  no such segment (any more)
  struct Opened {
    std::shared_ptr<const fabric::Fd> fd;
    uint64_t bytes = 0;
  };
  Result<Opened> OpenSegment(uint32_t id);
  std::vector<uint32_t> SegmentIds();
  // Each is valid until it leaves.
  std::vector<const Segment*> Segments();
  // For those who follow which segments leave: how many ever have. Cost: one load.
  uint64_t left_count() const { return left_count_.load(std::memory_order_acquire); }
  // The numbers of those that have left after the first `*seen`, which then counts them, too.
  // False: they are more than are remembered. Cost: O(those).
  [[nodiscard]] bool LeftSince(uint64_t* seen, std::vector<uint32_t>* ids);
  static constexpr uint64_t kLeftMax = 1024;  // that are remembered
  // Whether a segment of at least `bytes` is here.
  bool HasSegmentOf(uint64_t bytes);
  Stats stats();

 private:
  friend class SlabPlacement;
  struct Unit {  // a run as DrainWindow sees it
    PageRuns::Page* run = nullptr;
    uint64_t cost_bytes = 0;
    bool blocked = false;
  };
  struct Units {
    uint64_t cost_bytes = UINT64_MAX;
    PageRuns::Page* first = nullptr;
    PageRuns::Page* last = nullptr;
  };
  struct State {
    PageRuns runs;
    std::unordered_map<uint32_t, PageRuns::SegmentPages*> by_id;
    std::vector<uint32_t> left;        // the nth segment that left, at n % kLeftMax
    std::array<Slab*, 256> partial{};  // by class
    std::vector<std::unique_ptr<Slab>> slabs;
    std::vector<Slab*> spare;
    std::vector<Unit> units;           // scratch
    std::array<uint64_t, 256> used{};  // chunks, by class
    WindowSearch search;
    uint64_t chunk_bytes = 0;
    uint64_t idle_bytes = 0;
    size_t draining_slabs = 0;
    size_t slab_cursor = 0;
    size_t segment_cursor = 0;
  };

  static Slab* NewSlab(State& state, uint8_t size_class, bool short_slab);
  static Slab* CutSlab(State& state, PageRuns::Page* run, uint8_t size_class, uint32_t chunks);
  static void Own(State& state, Slab* slab, uint32_t index, ObjectEntry* owner);
  static void List(State& state, Slab* slab);
  static void Unlist(State& state, Slab* slab);
  static uint32_t SlabPages(const State& state, uint8_t size_class);
  static void DrainSlab(State& state, Slab* slab, std::vector<Victim>* victims);
  static void DrainRun(State& state, PageRuns::Page* run, std::vector<Victim>* victims);
  static void DrainRuns(State& state, PageRuns::Page* first, const PageRuns::Page* last,
                        std::vector<Victim>* victims);
  static Units CheapestWindow(State& state, PageRuns::SegmentPages* segment, uint32_t pages);
  static Units BestOfUnits(const State& state, uint32_t pages, size_t* first, size_t* last);
  static bool SegmentTouch(PageRuns::SegmentPages* segment, int64_t* touched_ns);
  std::unique_ptr<Segment> Take(State& state, PageRuns::SegmentPages* segment);

  Guarded<State> state_;
  std::atomic<uint64_t> left_count_{0};  // written under the lock
};

}  // namespace ems::server
