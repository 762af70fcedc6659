#pragma once
// Load and save between an engine's paged tensors and the pool: ContextCache with a KvLayout.
//
// Bytes go straight between the tensors and the store, piece by piece; nothing is gathered first. A
// block counts as loaded only when its object has exactly the length that the layout and its tokens
// ask for: anything else is a miss. The key has to guarantee that its bytes mean the same: take
// keys from a domain made by DomainFor(), or add the layout's fingerprint to those of your own.
//
// A key may be named several times in a call: a load fills the token slots of each, a save stores
// what the first names. A call with a token slot that the layout does not have fails as a whole,
// before anything is read or written: kInvalidArgument, kOutOfRange for each key.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/submitted_call.h"
#include "ems_context/context_cache.h"
#include "ems_context/key_domain.h"
#include "ems_context/layer_load.h"
#include "ems_context/paged_block.h"
#include "ems_context/save_policy.h"

namespace ems::context {

struct PagedOptions {
  uint32_t tp_rank = 0, tp_size = 1;
  // All ranks hold the same bytes (MLA): of a list, which must be the same on all ranks, a rank
  // saves blocks i with i % tp_size == tp_rank. All ranks load all.
  bool shared_by_tp = false;
  SavePolicy policy = SavePolicy::kPrefillOnly;
  // LoadLayers reads at least so much of a block at a time, in whole layers: a range that is not
  // cut at 64 KiB costs the hashing of up to 64 KiB more at either end, and a round trip.
  uint64_t layer_read_bytes = 256 * kKiB;
};

using LoadCall = SubmittedCall<LoadResult>;
using SaveCall = SubmittedCall<SaveResult>;

// Threading: thread-safe. Sync calls work on the caller's thread; the others on the store's
// threads, which also run `done`, at the end and without a lock; it must not block.
class PagedCache final {
 public:
  // `cache` and `store`, the one that `cache` works on, must outlive this.
  PagedCache(ContextCache* cache, BlockStore* store, KvLayout layout,
             const PagedOptions& options = {});
  // Waits for calls that are not over.
  ~PagedCache();
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  const KvLayout& layout() const { return layout_; }
  const PagedOptions& options() const { return options_; }
  // `domain` with what follows from layout and ranks: kv_layout, tp_rank, tp_size (0 of 1 where
  // ranks share).
  KeyDomain DomainFor(KeyDomain domain) const;

  // Fills the token slots of each block that is in the pool. Shape: results are [blocks]; a block's
  // value is its bytes. Slots of a block that did not arrive hold undefined bytes. Errors by block:
  // those of ContextCache::Load; of the call: kInvalidArgument  a token slot twice, no tokens,
  // groups missing    kOutOfRange  no such token slot
  LoadResult Load(std::span<const PagedBlock> blocks, const CallOptions& options = {});
  // Stores the blocks that the pool does not have, as far as policy and rank say; what they leave
  // out is ok and counted as skipped. Errors: as Load but for token slots, which may be used twice;
  // kInvalidArgument  tp_rank is not below tp_size
  SaveResult Save(std::span<const PagedBlock> blocks, SavePhase phase,
                  const CallOptions& options = {});

  // The same, later. Submitting does not block; the deadline counts from here. The token slots
  // must be left alone until the call is over: Done(), or Cancel() has returned. When too much
  // waits, the call is over at once: kResourceExhausted.
  LoadCall LoadAsync(std::vector<PagedBlock> blocks, const CallOptions& options = {},
                     std::function<void()> done = {});
  SaveCall SaveAsync(std::vector<PagedBlock> blocks, SavePhase phase,
                     const CallOptions& options = {}, std::function<void()> done = {});

  // Loads layers 0, 1, … one after the other, all blocks of each. Cost: as Load, and a read for
  // each block and layer_read_bytes.
  LayerLoad LoadLayers(std::vector<PagedBlock> blocks, const CallOptions& options = {},
                       std::function<void()> done = {});

 private:
  // `on_over` may be empty, and gets the outcome.
  template <typename Outcome>
  SubmittedCall<Outcome> Start(std::span<const PagedBlock> blocks, const CallOptions& options,
                               std::function<void(const Outcome&)> on_over,
                               std::function<Outcome(const CallState<Outcome>&)> work);
  Deadline DeadlineOf(std::span<const PagedBlock> blocks, const CallOptions& options) const;
  LoadResult LoadUntil(std::span<const PagedBlock> blocks, const CallOptions& options,
                       Deadline deadline);
  SaveResult SaveUntil(std::span<const PagedBlock> blocks, SavePhase phase,
                       const CallOptions& options, Deadline deadline);
  // Numbers of the blocks that this call is to store; `first_of[i]`: the block that names key i
  // first.
  std::vector<size_t> Mine(std::span<const PagedBlock> blocks, SavePhase phase,
                           std::vector<size_t>* first_of) const;
  Status CheckRank() const;

  ContextCache* const cache_;
  BlockStore* const store_;
  const KvLayout layout_;
  const PagedOptions options_;
  CallGate gate_;
};

}  // namespace ems::context
