#include "pdc/engine/kv_block_pool.h"

#include "common/check.h"

namespace ems::pdc {

KvBlockPool::KvBlockPool(uint32_t blocks) : blocks_(blocks) {
  auto state = state_.Lock();
  state->holders.assign(blocks, 0);
  for (uint32_t i = blocks; i > 0; --i) state->free.push_back(i - 1);
}

uint32_t KvBlockPool::free_blocks() {
  auto state = state_.Lock();
  return static_cast<uint32_t>(state->free.size());
}

Result<std::vector<BlockId>> KvBlockPool::Allocate(uint32_t count) {
  auto state = state_.Lock();
  const size_t free = state->free.size();
  if (count > free) {
    state.Unlock();
    return Error(StatusCode::kResourceExhausted, "{} KV blocks wanted, {} of {} are free", count,
                 free, blocks_);
  }
  std::vector<BlockId> taken;
  taken.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    taken.push_back(state->free.back());
    state->free.pop_back();
    EMS_CHECK(state->holders[taken.back()] == 0, "free KV block {} is held", taken.back());
    state->holders[taken.back()] = 1;
  }
  return taken;
}

void KvBlockPool::Share(BlockId block) {
  auto state = state_.Lock();
  EMS_CHECK(block < blocks_ && state->holders[block] > 0, "KV block {} is not held", block);
  ++state->holders[block];
}

void KvBlockPool::Release(BlockId block) {
  auto state = state_.Lock();
  EMS_CHECK(block < blocks_ && state->holders[block] > 0, "KV block {} is not held", block);
  if (--state->holders[block] == 0) state->free.push_back(block);
}

uint32_t KvBlockPool::holders(BlockId block) {
  auto state = state_.Lock();
  EMS_CHECK(block < blocks_, "KV block {} of {}", block, blocks_);
  return state->holders[block];
}

}  // namespace ems::pdc
