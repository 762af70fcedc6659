#include "pdc/engine/kv_sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace ems::pdc {

KvSequence::KvSequence(KvSequence&& other) noexcept
    : arena_(other.arena_),
      blocks_(std::exchange(other.blocks_, {})),
      tokens_(std::exchange(other.tokens_, 0)) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  arena_ = other.arena_;
  blocks_ = std::exchange(other.blocks_, {});
  tokens_ = std::exchange(other.tokens_, 0);
  return *this;
}

Status KvSequence::Reserve(uint32_t tokens) {
  const uint64_t wanted = (uint64_t{tokens} + arena_->block_tokens() - 1) / arena_->block_tokens();
  if (wanted <= blocks_.size()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(const std::vector<BlockId> more,
                       arena_->pool().Allocate(static_cast<uint32_t>(wanted - blocks_.size())));
  blocks_.insert(blocks_.end(), more.begin(), more.end());
  EMS_CHECK(tokens_ <= capacity(), "{} tokens in blocks for {}", tokens_, capacity());
  return OkStatus();
}

Status KvSequence::SetTokens(uint32_t tokens) {
  if (tokens > capacity())
    return Error(StatusCode::kOutOfRange, "{} tokens in blocks for {}", tokens, capacity());
  tokens_ = tokens;
  return OkStatus();
}

void KvSequence::Truncate(uint32_t tokens) { tokens_ = std::min(tokens_, tokens); }

void KvSequence::Clear() {
  tokens_ = 0;
  for (; !blocks_.empty(); blocks_.pop_back()) arena_->pool().Release(blocks_.back());
}

Result<KvSequence> KvSequence::Fork() const {
  KvSequence fork(arena_);
  const uint32_t whole = tokens_ / arena_->block_tokens();
  for (uint32_t i = 0; i < whole; ++i) {
    arena_->pool().Share(blocks_[i]);
    fork.blocks_.push_back(blocks_[i]);
  }
  EMS_RETURN_IF_ERROR(fork.Reserve(tokens_));
  fork.tokens_ = tokens_;
  if (tokens_ % arena_->block_tokens() != 0)
    std::memcpy(arena_->block(fork.blocks_[whole]).data(), arena_->block(blocks_[whole]).data(),
                arena_->block_bytes());
  return fork;
}

Result<std::vector<context::SlotRun>> KvSequence::Runs(uint32_t first, uint32_t count) const {
  if (uint64_t{first} + count > capacity())
    return Error(StatusCode::kOutOfRange, "tokens {}+{} in blocks for {}", first, count,
                 capacity());
  std::vector<context::SlotRun> runs;
  const uint32_t page = arena_->block_tokens();
  while (count > 0) {
    const uint32_t row = first % page;
    const uint32_t some = std::min(count, page - row);
    runs.push_back({uint64_t{blocks_[first / page]} * page + row, some});
    first += some;
    count -= some;
  }
  return runs;
}

Status KvSequence::CheckWritable(uint32_t first, uint32_t count) const {
  if (uint64_t{first} + count > capacity())
    return Error(StatusCode::kOutOfRange, "tokens {}+{} in blocks for {}", first, count,
                 capacity());
  if (count == 0) return OkStatus();
  const uint32_t page = arena_->block_tokens();
  for (uint32_t i = first / page; i <= (first + count - 1) / page; ++i) {
    const uint32_t holders = arena_->pool().holders(blocks_[i]);
    if (holders > 1)
      return Error(StatusCode::kFailedPrecondition,
                   "KV block {} of the sequence is shared by {} and cannot be written", i, holders);
  }
  return OkStatus();
}

}  // namespace ems::pdc
