#pragma once
// Runs of pages inside a namespace's segments: best fit, coalescing, boundary tags.
//
// Invariant: each page is in exactly one run; first and last page of every run carry its length and
// kind; two free runs are never neighbours; free runs of segments that are not draining are in the
// bins. Bound: 40 bytes of tags for each 16 KiB page; a search looks at 32 runs at most.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "mp_server/memory/segment_pool.h"
#include "mp_server/memory/size_classes.h"

namespace ems::server {

enum class RunKind : uint8_t { kFree = 0, kSlab = 1, kObject = 2 };

// Threading: caller locks. Cost: O(1) but for Add and Drain.
class PageRuns final {
 public:
  struct SegmentPages;
  // The tag of one page. `owner` is the user's.
  struct Page {
    Page* prev = nullptr;  // in its bin, when free
    Page* next = nullptr;
    void* owner = nullptr;
    SegmentPages* segment = nullptr;
    uint32_t run_pages = 0;
    RunKind kind = RunKind::kFree;
  };
  struct SegmentPages {
    std::unique_ptr<Segment> segment;
    std::vector<Page> pages;
    uint32_t free_pages = 0;
    bool draining = false;  // nothing is allocated here any more; goes when empty
    bool empty() const { return free_pages == pages.size(); }
  };

  void Add(std::unique_ptr<Segment> segment);
  // The smallest run that fits, cut to `pages`; nullptr when there is none.
  Page* Allocate(uint32_t pages, RunKind kind);
  // Whether Allocate would find one.
  bool Has(uint32_t pages) const;
  // The longest run of at most `pages_max` pages; nullptr when nothing is free.
  Page* AllocateLongest(uint32_t pages_max, RunKind kind);
  // The pages [first, first + pages) of the segment, of which no later page is in use: so a segment
  // is laid out again in ascending order. nullptr: they are not free.
  Page* Place(SegmentPages* segment, uint32_t first, uint32_t pages, RunKind kind);
  // Gives the end of a run back, keeping `pages`.
  void Trim(Page* run, uint32_t pages);
  void Free(Page* run);
  // No more allocations from this segment.
  void Drain(SegmentPages* segment);
  // Takes an empty segment out.
  std::unique_ptr<Segment> Take(SegmentPages* segment);

  std::byte* Address(const Page* run) const;
  const std::vector<std::unique_ptr<SegmentPages>>& segments() const { return segments_; }
  uint64_t pages() const { return pages_; }            // of segments that are not draining
  uint64_t free_pages() const { return free_pages_; }  // likewise
  // Free runs, long ones first (within a bin in any order), up to `count`. Cost: O(count + bins).
  void LongestFree(size_t count, std::vector<Page*>* runs) const;
  // Walks the runs of a segment in address order: starts at FirstRun, ends at nullptr.
  static Page* FirstRun(SegmentPages* segment) { return segment->pages.data(); }
  static Page* NextRun(Page* run);
  static Page* PrevRun(Page* run);

 private:
  static constexpr uint32_t kExactBins = 64;
  static constexpr uint32_t kBins = 192;
  static uint32_t BinOf(uint32_t pages);
  void Tag(Page* run, uint32_t pages, RunKind kind);
  void Link(Page* run);
  void Unlink(Page* run);
  Page* FindIn(uint32_t bin, uint32_t pages) const;
  // First non-empty bin ≥ `bin`, or kBins.
  uint32_t NextBin(uint32_t bin) const;
  Page* Cut(Page* run, uint32_t pages, RunKind kind);

  std::vector<std::unique_ptr<SegmentPages>> segments_;
  std::array<Page*, kBins> bins_{};
  std::array<uint64_t, kBins / 64> occupied_{};
  uint64_t pages_ = 0;
  uint64_t free_pages_ = 0;
};

}  // namespace ems::server
