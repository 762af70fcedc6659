#pragma once
// Spreads reads of keys that have copies over their owner and those who hold the copies.
//
// What the owner says of copies is kept for as long as it says (KnownCopies); a read of such a key
// in an immutable namespace goes to the owner and the holders in turns, which each thread takes for
// itself. A holder that has no copy, refuses, or does not answer is as good as none: the item stays
// open, goes to the owner in the same call, and nobody else is asked until the owner has spoken
// again. Owners on this machine are not spared, as they are read without a network.
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "cluster/dht_view.h"
#include "cluster/hot_holders.h"
#include "mp_sdk/internal/batch.h"
#include "mp_sdk/internal/known_copies.h"

namespace ems::internal {

// Threading: thread-safe.
class HotReads final {
 public:
  struct Stats {
    // Items that copies answered, and those that went to their owner after all.
    std::atomic<uint64_t> hits{0}, misses{0};
  };

  // Before a round: whom each open item is asked of, BatchItem::hot_at. Cost: a load where no
  // copies are known; else a hash an item.
  void Choose(Batch* batch, const DhtView& view);
  // After it: what answers said of copies, and how it went with those that were asked for.
  // `remote`: the server was asked over a network.
  void Note(const Batch& batch, std::span<BatchItem* const> items, bool remote);
  // Another server that may have the item than the one of this round; none: there is none.
  // kNoNode: its owner.
  std::optional<NodeId> OtherFor(const Batch& batch, const BatchItem& item,
                                 const DhtView& view) const;
  const Stats& stats() const { return stats_; }

 private:
  // Whose copies are known; `count` of them.
  struct Holders {
    std::array<NodeId, HotHolders::kMost> nodes{};
    size_t count = 0;
  };
  Holders HoldersOf(const Batch& batch, const BatchItem& item, const DhtView& view,
                    TimePoint now) const;
  static bool MayAskCopies(const Batch& batch) {
    return batch.immutable && (batch.op == wire::Op::kGet || batch.op == wire::Op::kGetRange);
  }

  KnownCopies known_;
  Stats stats_;
};

}  // namespace ems::internal
