#pragma once
// The pool as a worker of the serving loop sees it: the KV of a prompt's leading blocks comes from
// there, that of new blocks goes there.
//
// Invariant: tokens count as loaded only when the blocks of all of them arrived whole; whatever
// goes wrong, less is loaded and the rest is computed. A block that is being saved is held, so its
// memory is neither written nor given to another sequence meanwhile.
// Bound: saves_max saves under way; those beyond are left out, and counted. A load waits no longer
// than its time.
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "ems_context/context_cache.h"
#include "ems_context/paged_cache.h"
#include "ems_context/save_policy.h"
#include "pdc/engine/engine.h"
#include "pdc/engine/kv_arena.h"
#include "pdc/engine/kv_sequence.h"

namespace ems::pdc {

struct PrefixCacheOptions {
  Duration timeout = std::chrono::seconds(2);  // of a load or a save
  context::SavePolicy policy = context::SavePolicy::kPrefillOnly;
  uint32_t saves_max = 256;
};

struct PrefixHit {
  uint32_t prompt_blocks = 0;  // that could have been there
  uint32_t cached_tokens = 0;  // loaded, and valid in the sequence now
};

struct PrefixCacheStats {
  uint64_t saved_blocks = 0;     // whose bytes were moved
  uint64_t existing_blocks = 0;  // that the pool had already
  uint64_t failed_blocks = 0;
  uint64_t saves_left_out = 0;  // beyond saves_max
};

// Threading: thread-safe; a sequence belongs to who names it, until the call is over.
class PrefixCache final {
 public:
  // Blocks of the pool are blocks of `arena`. `store` and `arena` must outlive this, the model need
  // not. Errors: kInvalidArgument  an arena whose blocks are not 16 to 512 tokens
  static Result<std::unique_ptr<PrefixCache>> Create(context::BlockStore* store, KvArena* arena,
                                                     const Model& model,
                                                     const PrefixCacheOptions& options);
  // Waits until no save is under way; each has its time.
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Fills `kv`, which is empty, with as many leading blocks of `prompt` as the pool has, and
  // reserves room for all of it. The last token is never loaded: it has to be computed for its
  // logits. Prompts with different salts share nothing.
  // Errors: kResourceExhausted  no KV blocks for the prompt    kInvalidArgument  a salt too long,
  // an empty prompt. What the pool cannot give is no error.
  // Cost: blocks for `timeout` at most; one lookup and the blocks' bytes.
  Result<PrefixHit> Load(std::span<const TokenId> prompt, std::string_view salt, KvSequence* kv,
                         const context::CallOptions& options = {});

  // Stores the full blocks of `kv` from token `first` on that the pool does not have, as far as the
  // policy says, later. `tokens`: those in `kv`. Does not block.
  void Save(std::span<const TokenId> tokens, std::string_view salt, const KvSequence& kv,
            uint32_t first, context::SavePhase phase);
  // Waits for saves. False: the time was over first.
  bool Drain(Duration timeout);

  PrefixCacheStats stats();

 private:
  struct Saves {
    uint32_t running = 0;
    PrefixCacheStats stats;
  };
  PrefixCache(context::BlockStore* store, KvArena* arena, const PrefixCacheOptions& options,
              context::KvLayout layout, std::string fingerprint);
  // Keys of full blocks. Errors: kInvalidArgument
  Result<std::vector<std::string>> Keys(std::span<const TokenId> tokens,
                                        std::string_view salt) const;
  void SaveEnded(const context::SaveResult& result, std::span<const BlockId> held);

  context::BlockStore* const store_;
  KvArena* const arena_;
  const PrefixCacheOptions options_;
  const std::string fingerprint_;
  context::ContextCache cache_;
  context::PagedCache paged_;
  Guarded<Saves> saves_;
  std::condition_variable none_;
};

}  // namespace ems::pdc
