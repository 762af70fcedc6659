#pragma once
// Asks servers of a view whether they have a newer one, and takes it from them: a view is the
// controller's whoever brings it, and says by its checksums and its cluster that it is one.
//
// Bound: kAsked servers at a time, others the next time; no connection is kept.
#include <random>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/ids.h"

namespace ems::server {

// Appends the bytes of `view` as Find reads them.
void AppendTo(const DhtView& view, std::vector<std::byte>* body);

// Threading: one thread ("ems-ctl").
class PeerView final {
 public:
  static constexpr size_t kAsked = 4;

  explicit PeerView(uint64_t seed) : dice_(seed) {}

  // The newest view that some servers of `view`, of which `self` is one, have; null: none that is
  // newer. Only the processes that the view shows are believed. Blocks up to `patience`.
  ViewCache::View Find(const DhtView& view, NodeId self, Duration patience);

 private:
  std::mt19937_64 dice_;
};

}  // namespace ems::server
