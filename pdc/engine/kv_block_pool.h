#pragma once
// The allocator of a KV arena's blocks, with a count of holders for each.
#include <cstdint>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"

namespace ems::pdc {

using BlockId = uint32_t;

// Invariant: a block is free or held by one or more; never both, never twice in the free list.
// Threading: thread-safe. Cost: O(blocks named), one leaf lock.
class KvBlockPool final {
 public:
  explicit KvBlockPool(uint32_t blocks);
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  uint32_t blocks() const { return blocks_; }
  uint32_t free_blocks();

  // All of them or none; each is held once. Errors: kResourceExhausted  says how many are free
  Result<std::vector<BlockId>> Allocate(uint32_t count);
  // One more holder of a block that has one.
  void Share(BlockId block);
  // One holder less; the last one frees it.
  void Release(BlockId block);
  uint32_t holders(BlockId block);

 private:
  struct State {
    std::vector<BlockId> free;      // taken from its end
    std::vector<uint32_t> holders;  // by block
  };
  const uint32_t blocks_;
  Guarded<State> state_;
};

}  // namespace ems::pdc
