#include "mp_server/memory/page_runs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/check.h"

namespace ems::server {
namespace {

constexpr int kSearchMax = 32;

}  // namespace

// Bins of one length up to 63 pages, then 8 for each doubling.
uint32_t PageRuns::BinOf(uint32_t pages) {
  if (pages < kExactBins) return pages;
  const auto exponent = static_cast<uint32_t>(std::bit_width(pages)) - 1;
  return std::min(kBins - 1, kExactBins + (exponent - 6) * 8 + ((pages >> (exponent - 3)) & 7));
}

void PageRuns::Tag(Page* run, uint32_t pages, RunKind kind) {
  Page* last = run + pages - 1;
  run->run_pages = last->run_pages = pages;
  run->kind = last->kind = kind;
}

void PageRuns::Link(Page* run) {
  if (run->segment->draining) return;
  const uint32_t bin = BinOf(run->run_pages);
  run->prev = nullptr;
  run->next = bins_[bin];
  if (run->next != nullptr) run->next->prev = run;
  bins_[bin] = run;
  occupied_[bin / 64] |= uint64_t{1} << (bin % 64);
  free_pages_ += run->run_pages;
}

void PageRuns::Unlink(Page* run) {
  if (run->segment->draining) return;
  const uint32_t bin = BinOf(run->run_pages);
  (run->prev != nullptr ? run->prev->next : bins_[bin]) = run->next;
  if (run->next != nullptr) run->next->prev = run->prev;
  if (bins_[bin] == nullptr) occupied_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  free_pages_ -= run->run_pages;
}

void PageRuns::Add(std::unique_ptr<Segment> segment) {
  auto added = std::make_unique<SegmentPages>();
  const auto pages = static_cast<uint32_t>(segment->size_bytes() / kPageBytes);
  EMS_CHECK(pages > 0, "segment {} has {} bytes, less than a page", segment->id,
            segment->size_bytes());
  added->pages.resize(pages);
  for (Page& page : added->pages) page.segment = added.get();
  added->free_pages = pages;
  added->segment = std::move(segment);
  Page* run = added->pages.data();
  Tag(run, pages, RunKind::kFree);
  Link(run);
  pages_ += pages;
  segments_.push_back(std::move(added));
}

PageRuns::Page* PageRuns::FindIn(uint32_t bin, uint32_t pages) const {
  Page* best = nullptr;
  int looked = 0;
  for (Page* run = bins_[bin]; run != nullptr && looked < kSearchMax; run = run->next, ++looked) {
    if (run->run_pages >= pages && (best == nullptr || run->run_pages < best->run_pages))
      best = run;
  }
  return best;
}

uint32_t PageRuns::NextBin(uint32_t bin) const {
  while (bin < kBins) {
    const uint64_t rest = occupied_[bin / 64] >> (bin % 64);
    if (rest != 0) return bin + static_cast<uint32_t>(std::countr_zero(rest));
    bin = (bin / 64 + 1) * 64;
  }
  return kBins;
}

PageRuns::Page* PageRuns::Allocate(uint32_t pages, RunKind kind) {
  EMS_CHECK(pages > 0, "a run of 0 pages");
  for (uint32_t bin = NextBin(BinOf(pages)); bin < kBins; bin = NextBin(bin + 1)) {
    if (Page* run = FindIn(bin, pages); run != nullptr) return Cut(run, pages, kind);
  }
  return nullptr;
}

bool PageRuns::Has(uint32_t pages) const {
  const uint32_t bin = BinOf(pages);
  return NextBin(bin + 1) < kBins || FindIn(bin, pages) != nullptr;
}

void PageRuns::LongestFree(size_t count, std::vector<Page*>* runs) const {
  for (uint32_t bin = kBins; bin-- > 0;) {
    for (Page* run = bins_[bin]; run != nullptr; run = run->next) {
      if (runs->size() >= count) return;
      runs->push_back(run);
    }
  }
}

PageRuns::Page* PageRuns::AllocateLongest(uint32_t pages_max, RunKind kind) {
  if (Page* run = Allocate(pages_max, kind); run != nullptr) return run;
  for (uint32_t bin = BinOf(pages_max) + 1; bin-- > 0;) {
    Page* run = bins_[bin];
    if (run != nullptr) return Cut(run, std::min(run->run_pages, pages_max), kind);
  }
  return nullptr;
}

PageRuns::Page* PageRuns::Cut(Page* run, uint32_t pages, RunKind kind) {
  EMS_CHECK(run->kind == RunKind::kFree && run->run_pages >= pages, "cutting {} pages of {}", pages,
            run->run_pages);
  Unlink(run);
  const uint32_t rest = run->run_pages - pages;
  Tag(run, pages, kind);
  if (rest > 0) {
    Tag(run + pages, rest, RunKind::kFree);
    Link(run + pages);
  }
  run->segment->free_pages -= pages;
  return run;
}

PageRuns::Page* PageRuns::Place(SegmentPages* segment, uint32_t first, uint32_t pages,
                                RunKind kind) {
  const auto count = static_cast<uint32_t>(segment->pages.size());
  const uint32_t tail_pages = segment->pages.back().run_pages;
  if (segment->draining || segment->pages.back().kind != RunKind::kFree || pages == 0 ||
      first >= count || pages > count - first || first < count - tail_pages)
    return nullptr;
  Page* tail = segment->pages.data() + (count - tail_pages);
  const uint32_t before = first - (count - tail_pages);
  if (before > 0) {  // stays free, in a run of its own
    Unlink(tail);
    Tag(tail, before, RunKind::kFree);
    Link(tail);
    tail += before;
    Tag(tail, tail_pages - before, RunKind::kFree);
    Link(tail);
  }
  return Cut(tail, pages, kind);
}

void PageRuns::Trim(Page* run, uint32_t pages) {
  EMS_CHECK(pages > 0 && pages <= run->run_pages, "keeping {} pages of {}", pages, run->run_pages);
  const uint32_t rest = run->run_pages - pages;
  if (rest == 0) return;
  const RunKind kind = run->kind;
  Tag(run, pages, kind);
  Tag(run + pages, rest, kind);
  Free(run + pages);
}

void PageRuns::Free(Page* run) {
  SegmentPages* segment = run->segment;
  EMS_CHECK(run->kind != RunKind::kFree, "segment {}: run at page {} freed twice",
            segment->segment->id, run - segment->pages.data());
  uint32_t pages = run->run_pages;
  segment->free_pages += pages;
  run->owner = nullptr;
  Page* after = run + pages;
  if (after < segment->pages.data() + segment->pages.size() && after->kind == RunKind::kFree) {
    Unlink(after);
    pages += after->run_pages;
  }
  if (run > segment->pages.data() && (run - 1)->kind == RunKind::kFree) {
    Page* before = run - (run - 1)->run_pages;
    Unlink(before);
    pages += before->run_pages;
    run = before;
  }
  Tag(run, pages, RunKind::kFree);
  Link(run);
}

void PageRuns::Drain(SegmentPages* segment) {
  if (segment->draining) return;
  for (Page* run = FirstRun(segment); run != nullptr; run = NextRun(run)) {
    if (run->kind == RunKind::kFree) Unlink(run);
  }
  pages_ -= segment->pages.size();
  segment->draining = true;
}

std::unique_ptr<Segment> PageRuns::Take(SegmentPages* segment) {
  EMS_CHECK(segment->empty(), "segment {} has {} pages in use", segment->segment->id,
            segment->pages.size() - segment->free_pages);
  Drain(segment);
  const auto it = std::find_if(segments_.begin(), segments_.end(),
                               [&](const auto& s) { return s.get() == segment; });
  EMS_CHECK(it != segments_.end(), "unknown segment");
  std::unique_ptr<Segment> taken = std::move(segment->segment);
  std::swap(*it, segments_.back());
  segments_.pop_back();
  return taken;
}

std::byte* PageRuns::Address(const Page* run) const {
  return run->segment->segment->memory.bytes().data() +
         static_cast<uint64_t>(run - run->segment->pages.data()) * kPageBytes;
}

PageRuns::Page* PageRuns::NextRun(Page* run) {
  Page* next = run + run->run_pages;
  return next < run->segment->pages.data() + run->segment->pages.size() ? next : nullptr;
}

PageRuns::Page* PageRuns::PrevRun(Page* run) {
  return run == run->segment->pages.data() ? nullptr : run - (run - 1)->run_pages;
}

}  // namespace ems::server
