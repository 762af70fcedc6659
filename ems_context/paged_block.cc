#include "ems_context/paged_block.h"

#include <algorithm>

namespace ems::context {
namespace {

struct Taken {
  SlotRun run;
  size_t block = 0;
};

// `all`: the runs of one group.
Status CheckOnce(std::vector<Taken>* all) {
  std::sort(all->begin(), all->end(),
            [](const Taken& a, const Taken& b) { return a.run.start_slot < b.run.start_slot; });
  for (size_t i = 1; i < all->size(); ++i) {
    const Taken &before = (*all)[i - 1], &here = (*all)[i];
    if (before.run.start_slot + before.run.tokens > here.run.start_slot)
      return Error(StatusCode::kInvalidArgument,
                   "slot {} is to be written by block {} and again by block {}",
                   here.run.start_slot, before.block, here.block);
  }
  return OkStatus();
}

}  // namespace

uint64_t ObjectBytes(const KvLayout& layout, const PagedBlock& block) {
  uint64_t bytes = 0;
  const size_t groups = std::min(block.runs.size(), layout.groups());
  for (uint32_t group = 0; group < groups; ++group)
    bytes += layout.BlockBytes(group, TokensOf(block.runs[group]));
  return bytes;
}

Status CheckBlocks(const KvLayout& layout, std::span<const PagedBlock> blocks, SlotUse use) {
  std::vector<std::vector<Taken>> taken(layout.groups());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const PagedBlock& block = blocks[i];
    if (block.runs.size() != layout.groups())
      return Error(StatusCode::kInvalidArgument,
                   "block {}: {} lists of slots, but the layout has {} groups", i,
                   block.runs.size(), layout.groups());
    for (uint32_t group = 0; group < layout.groups(); ++group) {
      const Status there = layout.CheckRuns(group, block.runs[group]);
      if (!there.ok()) return Prefixed(there, fmt::format("block {}", i));
      if (use == SlotUse::kRead) continue;
      for (const SlotRun& run : block.runs[group])
        if (run.tokens > 0) taken[group].push_back({run, i});
    }
    if (ObjectBytes(layout, block) == 0)
      return Error(StatusCode::kInvalidArgument, "block {}: no tokens", i);
  }
  for (std::vector<Taken>& group : taken) EMS_RETURN_IF_ERROR(CheckOnce(&group));
  return OkStatus();
}

}  // namespace ems::context
