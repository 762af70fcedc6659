#pragma once
// Prefix caching for an inference engine: how many leading KV blocks of a prompt are in the pool,
// load them, save new ones.
//
// A miss is always legal: whatever goes wrong, an engine gets per-block results within the deadline
// and computes the rest. Invariant: a block counts as loaded only when all of its bytes arrived and
// fit its buffer exactly; a save that failed half-way is never visible, because every block is
// committed alone and whole. Bound: one batch at a time carries ≤ 256 MiB and ≤ 16384 blocks; a
// call waits no longer than its deadline.
//
// Order. Within a batch blocks go tail-first: the LRU of a server then holds a prompt's root as
// youngest and its leaves as oldest. Leaves are evicted first, and a prompt loses its end instead
// of its beginning, without which the rest is useless. Batches of one call go root-first: what was
// moved when the time is over is a prefix. A save of several batches ends with one touch of all
// blocks, which restores tail-first order over the whole prompt and moves no bytes.
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/submitted_call.h"
#include "ems_context/block_hash.h"
#include "ems_context/block_store.h"
#include "ems_context/internal/batch_plan.h"

namespace ems::context {

struct CallBounds;  // internal/block_batches.h

struct ContextCacheOptions {
  // For statistics of calls that give keys only. Calls with tokens take the hasher's.
  uint32_t block_tokens = kBlockTokensDefault;
  // Default deadline of a call: timeout + its bytes at 100 MB/s, 30 s at most.
  Duration timeout = std::chrono::seconds(1);
  Durability durability = Durability::kDefault;  // of saved blocks; kDefault: as the namespace says
  BatchLimits batch{};
};

struct CallOptions {
  Duration timeout{0};  // of the whole call; 0: the cache's default
  bool touch = true;    // found blocks count as used
  // Asked before each batch of Load and Save, on their thread: true ends the call, and what no
  // batch has reached says kCancelled. May be empty.
  std::function<bool()> cancelled{};
};

struct LookupResult {
  std::vector<std::string> keys;  // of all full blocks; filled by the call that takes tokens
  std::vector<Result<bool>>
      present;  // per key; keys that were not asked for behind the first absent one: false
  size_t leading_blocks = 0;  // what Load would find now
};

struct LoadResult {
  std::vector<Result<uint64_t>> blocks;  // per key: its bytes, or why it did not arrive
  size_t leading_blocks = 0;             // blocks that arrived before the first that did not
};

struct SaveResult {
  std::vector<Status> blocks;  // per key: ok when the pool has it now
  size_t stored_blocks = 0;    // those whose bytes were moved by this call
  size_t existing_blocks = 0;  // those that were there already
  // PagedCache only: not this call's to store, for a policy or another rank (then ok), or as a key
  // that the call has already (then as that one).
  size_t skipped_blocks = 0;
};

// Since construction. Tokens are counted at lookup, so that a hit rate does not depend on what an
// engine then does.
struct ContextStats {
  uint64_t lookups = 0;
  uint64_t lookup_requested_blocks = 0, lookup_requested_tokens = 0;
  uint64_t lookup_hit_blocks = 0, lookup_hit_tokens = 0;
  uint64_t loaded_blocks = 0, loaded_bytes = 0;
  uint64_t saved_blocks = 0, saved_bytes = 0;
  uint64_t deduped_blocks = 0, deduped_bytes = 0;  // saved without moving a byte
  uint64_t conflicts = 0;  // another writer stored other bytes under the key meanwhile; they stay
  uint64_t size_mismatches =
      0;                       // stored blocks whose length is not the buffer's: counted as misses
  uint64_t failed_blocks = 0;  // results that are neither ok nor a miss
};

// Threading: thread-safe. A sync call works on the caller's thread; Async calls run on the store's
// threads, callbacks included.
class ContextCache final {
 public:
  // `store` must outlive this.
  explicit ContextCache(BlockStore* store, const ContextCacheOptions& options = {});
  // Waits for Async calls that have not completed; each has its deadline. Must not run in a
  // callback of this cache.
  ~ContextCache();
  ContextCache(const ContextCache&) = delete;
  ContextCache& operator=(const ContextCache&) = delete;

  // How many leading blocks are in the pool. Between this and Load a block may be evicted: Load
  // says what arrived. Keys are in prompt order, here and below. Result lists always have an entry
  // for each key. Cost: one round trip per server for each 16384 blocks, the servers in parallel;
  // no block bytes.
  LookupResult Lookup(std::span<const std::string> keys, const CallOptions& options = {});
  LookupResult Lookup(const BlockHasher& hasher, std::span<const int32_t> tokens,
                      const CallOptions& options = {});

  // Copies block i into into[i], which must be exactly as large as the block.
  // Shape: `into` is [keys]. Owner: the caller; the memory of a block that did not arrive is
  // undefined. Errors by block: kNotFound  miss, or of another length    kInvalidArgument  keys and
  // buffers differ in number
  //   and those of ems::Client.
  LoadResult Load(std::span<const std::string> keys, std::span<const MutableBuffers> into,
                  const CallOptions& options = {});

  // Stores the blocks that the pool does not have yet; those it has are touched and move no bytes.
  // A block that another writer stores meanwhile is a success whatever its bytes: the key names the
  // tokens, either computation of them is valid. Shape: `values` is [keys]. Errors by block:
  // kInvalidArgument  keys and values differ in number
  //   and those of ems::Client but kAlreadyExists.
  SaveResult Save(std::span<const std::string> keys, std::span<const ConstBuffers> values,
                  const CallOptions& options = {});

  // The same, later. Submitting never blocks; buffers and values must live until completion. The
  // deadline counts from here, waiting included. When too much waits, `done` runs at once on this
  // thread with kResourceExhausted for each key.
  void LookupAsync(std::vector<std::string> keys, const CallOptions& options,
                   std::function<void(LookupResult)> done);
  void LoadAsync(std::vector<std::string> keys, std::vector<MutableBuffers> into,
                 const CallOptions& options, std::function<void(LoadResult)> done);
  void SaveAsync(std::vector<std::string> keys, std::vector<ConstBuffers> values,
                 const CallOptions& options, std::function<void(SaveResult)> done);
  std::future<LookupResult> LookupAsync(std::vector<std::string> keys,
                                        const CallOptions& options = {});
  std::future<LoadResult> LoadAsync(std::vector<std::string> keys, std::vector<MutableBuffers> into,
                                    const CallOptions& options = {});
  std::future<SaveResult> SaveAsync(std::vector<std::string> keys, std::vector<ConstBuffers> values,
                                    const CallOptions& options = {});

  ContextStats stats();
  // Counts a load that was not made by this cache's calls: layer by layer, for instance.
  void NoteLoad(const LoadResult& result, size_t size_mismatches);

  // The time a call that moves `bytes` may take.
  Duration TimeoutOf(uint64_t bytes, const CallOptions& options) const;

 private:
  template <typename Outcome>
  void Run(std::function<Outcome()> work, std::function<void(Outcome)> done, Outcome refused);

  LookupResult LookupUntil(std::span<const std::string> keys, bool touch, Deadline deadline);
  LoadResult LoadUntil(std::span<const std::string> keys, std::span<const MutableBuffers> into,
                       bool touch, const CallBounds& bounds);
  SaveResult SaveUntil(std::span<const std::string> keys, std::span<const ConstBuffers> values,
                       const CallBounds& bounds);
  // Stores keys[i] for each i in `missing`. Returns the number of batches.
  size_t PutMissing(std::span<const std::string> keys, std::span<const ConstBuffers> values,
                    std::span<const size_t> missing, const CallBounds& bounds, SaveResult* result,
                    ContextStats* counted);
  void CountLookup(const LookupResult& result, uint64_t requested_tokens, uint32_t block_tokens);
  void CountSave(const ContextStats& counted);

  BlockStore* const store_;
  const ContextCacheOptions options_;
  Guarded<ContextStats> stats_;
  CallGate running_;  // Async calls that have not completed
};

}  // namespace ems::context
