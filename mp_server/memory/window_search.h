#pragma once
// The search for neighbouring runs to evict so that a free run becomes long enough, at the least
// loss to the cache.
//
// Invariant: a window is a row of neighbouring runs of one segment. Bound: a search grows windows
// around up to 12 free runs and 4 slabs, looks at 384 runs in all and at 4 objects of a slab.
#include <cstdint>
#include <limits>
#include <vector>

#include "mp_server/memory/page_runs.h"
#include "mp_server/memory/slab.h"

namespace ems::server {

// Between which times the objects of a namespace were touched last.
struct Ages {
  int64_t coldest_ns = 0;
  int64_t now_ns = 0;
  // Objects touched then or later are not evicted.
  int64_t spared_from_ns = std::numeric_limits<int64_t>::max();
};

struct Window {
  PageRuns::Page* first = nullptr;
  PageRuns::Page* last = nullptr;
  // What evicting its objects loses: almost nothing for the coldest, 1 for one touched just now.
  double loss = std::numeric_limits<double>::infinity();
};

// Threading: caller locks.
class WindowSearch final {
 public:
  // The cheapest window of `pages`, or one without runs when there is none. Nothing in it is held,
  // filled, draining or spared. Cost: see the bound; and
  // a look at each object of the window that wins.
  Window Find(const PageRuns& runs, const std::vector<std::unique_ptr<Slab>>& slabs, uint32_t pages,
              Ages ages);
  // Nobody looks at anything in the slab, nor fills it.
  static bool IsIdle(const Slab& slab);
  // Something in the run cannot go.
  static bool IsBlocked(const PageRuns::Page* run);

 private:
  Window Grow(PageRuns::Page* seed, uint32_t pages, Ages ages, double loss_max);
  // Infinite: it cannot go.
  static double LossOf(const PageRuns::Page* run, Ages ages);
  static bool IsFree(const Window& window, Ages ages);

  std::vector<PageRuns::Page*> seeds_;  // scratch
  std::vector<Window> windows_;         // scratch
  size_t slab_cursor_ = 0;
  int looks_left_ = 0;
};

}  // namespace ems::server
