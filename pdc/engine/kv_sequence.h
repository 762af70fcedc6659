#pragma once
// One sequence's KV: the blocks that hold its tokens, and how many of them are valid.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/status.h"
#include "ems_context/kv_layout.h"
#include "pdc/engine/kv_arena.h"

namespace ems::pdc {

// Token i lies in blocks()[i / block_tokens], row i % block_tokens. Move-only; gives its blocks
// back when it goes. `arena` must outlive it. Threading: one thread at a time.
class KvSequence final {
 public:
  explicit KvSequence(KvArena* arena) : arena_(arena) {}
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;
  ~KvSequence() { Clear(); }

  KvArena* arena() const { return arena_; }
  std::span<const BlockId> blocks() const { return blocks_; }
  uint32_t tokens() const { return tokens_; }  // valid ones; the next is computed at this position
  uint32_t capacity() const {
    return static_cast<uint32_t>(blocks_.size()) * arena_->block_tokens();
  }

  // Blocks for so many tokens in all; blocks that are there stay. All or none.
  // Errors: kResourceExhausted
  Status Reserve(uint32_t tokens);
  // The first `tokens` are valid now: they were loaded into the blocks, or copied there.
  // Errors: kOutOfRange  more than reserved
  Status SetTokens(uint32_t tokens);
  // Forgets tokens from `tokens` on; their blocks stay reserved.
  void Truncate(uint32_t tokens);
  // Gives all blocks back.
  void Clear();
  // The same tokens once more: whole blocks are shared, the last one is copied when it is partly
  // filled. Shared blocks are not written any more by either.
  // Errors: kResourceExhausted  no block for the copy
  Result<KvSequence> Fork() const;
  // Where tokens [first, first + count) lie, in pieces that end with their blocks; for loads,
  // saves and transfers. Errors: kOutOfRange  beyond what is reserved
  Result<std::vector<context::SlotRun>> Runs(uint32_t first, uint32_t count) const;
  // Whether tokens [first, first + count) may be written: reserved, and held by nobody else.
  // Errors: kOutOfRange    kFailedPrecondition  a shared block
  Status CheckWritable(uint32_t first, uint32_t count) const;

 private:
  KvArena* arena_;
  std::vector<BlockId> blocks_;
  uint32_t tokens_ = 0;
};

}  // namespace ems::pdc
