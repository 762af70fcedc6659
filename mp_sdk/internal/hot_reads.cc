#include "mp_sdk/internal/hot_reads.h"

#include "common/object_key.h"

namespace ems::internal {
namespace {

// Of a key in its namespace.
uint64_t NameOf(NamespaceRef ns, uint64_t hash) {
  return (hash ^ (uint64_t{ns.id.value()} << 32 | ns.generation)) * 0x9e3779b97f4a7c15;
}

// Threads begin at different places, so that they do not all ask the same server.
uint64_t NextTurn() {
  static std::atomic<uint64_t> threads{0};
  static thread_local uint64_t turn = threads.fetch_add(1, std::memory_order_relaxed);
  return ++turn;
}

}  // namespace

HotReads::Holders HotReads::HoldersOf(const Batch& batch, const BatchItem& item,
                                      const DhtView& view, TimePoint now) const {
  Holders holders;
  const uint64_t hash = KeyHash(item.key).lo;
  const uint8_t known = known_.Of(NameOf(batch.ns, hash), now);
  if (known == 0) return holders;
  const HotHolders all = HotHolders::Of(view, item.slot, hash);
  for (size_t i = 0; i < all.nodes.size(); ++i) {
    if ((known >> i & 1) != 0 && all.nodes[i] != kNoNode)
      holders.nodes[holders.count++] = all.nodes[i];
  }
  return holders;
}

void HotReads::Choose(Batch* batch, const DhtView& view) {
  if (!known_.any() || !MayAskCopies(*batch)) return;
  const TimePoint now = Clock::System().Now();
  for (BatchItem& item : batch->items) {
    item.hot_at = kNoNode;
    if (!item.open || item.hot_tried || item.copy > 0) continue;
    const Holders holders = HoldersOf(*batch, item, view, now);
    if (holders.count == 0) continue;
    const size_t turn = NextTurn() % (holders.count + 1);
    if (turn > 0) item.hot_at = holders.nodes[turn - 1];
  }
}

void HotReads::Note(const Batch& batch, std::span<BatchItem* const> items, bool remote) {
  if (!MayAskCopies(batch)) return;
  for (BatchItem* const item : items) {
    if (item->hot_at != kNoNode) {
      if (item->hot_tried) {
        stats_.misses.fetch_add(1, std::memory_order_relaxed);
        known_.Forget(NameOf(batch.ns, KeyHash(item->key).lo));
      } else if (!item->open && item->status.ok()) {
        stats_.hits.fetch_add(1, std::memory_order_relaxed);
      }
    } else if (item->hot_hint != 0 && remote) {
      known_.Learn(NameOf(batch.ns, KeyHash(item->key).lo), wire::CopyHint::Unpack(item->hot_hint),
                   Clock::System().Now());
    }
  }
}

std::optional<NodeId> HotReads::OtherFor(const Batch& batch, const BatchItem& item,
                                         const DhtView& view) const {
  if (!known_.any() || !MayAskCopies(batch)) return std::nullopt;
  if (item.hot_at != kNoNode) return kNoNode;
  const Holders holders = HoldersOf(batch, item, view, Clock::System().Now());
  if (holders.count == 0) return std::nullopt;
  // Turns are Choose's alone: one more between two of them would leave a holder out.
  static std::atomic<uint64_t> others{0};
  return holders.nodes[others.fetch_add(1, std::memory_order_relaxed) % holders.count];
}

}  // namespace ems::internal
