#pragma once
// One cached block in an engine's paged KV: its key, and the token slots of its tokens.
#include <span>
#include <string>
#include <vector>

#include "ems_context/kv_layout.h"

namespace ems::context {

// All groups' bytes make one object, group by group.
struct PagedBlock {
  std::string key;
  std::vector<std::vector<SlotRun>> runs;  // [groups]; mostly one. A group may have no tokens
};

// Bytes of the block's object. Groups that the layout does not have count nothing.
uint64_t ObjectBytes(const KvLayout& layout, const PagedBlock& block);

enum class SlotUse : uint8_t {
  kRead,
  kWrite,  // each token slot once: two blocks must not be written to one
};
// Errors, naming the block: kInvalidArgument  a list of runs for each group is needed, a block
// without tokens, a token slot used twice (kWrite)    kOutOfRange  one that the layout does not
// have    Cost: O(runs × log runs).
Status CheckBlocks(const KvLayout& layout, std::span<const PagedBlock> blocks, SlotUse use);

}  // namespace ems::context
