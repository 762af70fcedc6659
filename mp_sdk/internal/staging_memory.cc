#include "mp_sdk/internal/staging_memory.h"

#include <iterator>

#include "common/check.h"

namespace ems::internal {

StagingMemory::StagingMemory(std::unique_ptr<fabric::SharedMemory> memory)
    : memory_(std::move(memory)) {
  auto state = state_.Lock();
  state->Add(0, memory_->bytes().size());
}

Result<std::shared_ptr<StagingMemory>> StagingMemory::Create(uint64_t bytes) {
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<fabric::SharedMemory> memory,
                       fabric::SharedMemory::Create("ems-staging", bytes));
  return std::shared_ptr<StagingMemory>(new StagingMemory(std::move(memory)));
}

Result<StagingBuffer> StagingMemory::Allocate(uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a staging buffer of 0 bytes");
  const uint64_t size = memory_->bytes().size();
  const std::optional<uint64_t> offset = bytes > size ? std::nullopt : Cut(RoundUp(bytes, kUnit));
  if (!offset) {
    return Error(StatusCode::kResourceExhausted, "staging buffer of {}: no such room in {}",
                 FormatBytes(bytes), FormatBytes(size));
  }
  StagingBuffer buffer(shared_from_this(), memory_->bytes().subspan(*offset, bytes));
  EMS_RETURN_IF_ERROR(memory_->Populate(*offset, bytes));
  return buffer;
}

// The start of the shortest free range of `length` at least; the rest of it stays free.
std::optional<uint64_t> StagingMemory::Cut(uint64_t length) {
  auto state = state_.Lock();
  const auto best = state->by_length.lower_bound({length, 0});
  if (best == state->by_length.end()) return std::nullopt;
  const auto [room, offset] = *best;
  state->Drop(offset, room);
  if (room > length) state->Add(offset + length, room - length);
  return offset;
}

void StagingMemory::Free(MutableBytes bytes) {
  const auto at = OffsetOf(bytes);
  EMS_CHECK(at.has_value() && *at % kUnit == 0, "{} B come back that are no buffer", bytes.size());
  uint64_t offset = *at;
  uint64_t length = RoundUp(bytes.size(), kUnit);
  auto state = state_.Lock();
  const auto after = state->by_offset.lower_bound(offset);
  std::pair<uint64_t, uint64_t> next;
  if (after != state->by_offset.end()) next = *after;
  if (after != state->by_offset.begin()) {
    const auto [before, before_length] = *std::prev(after);
    EMS_CHECK(before + before_length <= offset, "a buffer is given back twice");
    if (before + before_length == offset) {
      state->Drop(before, before_length);
      offset = before;
      length += before_length;
    }
  }
  if (next.second != 0 && offset + length == next.first) {
    state->Drop(next.first, next.second);
    length += next.second;
  }
  state->Add(offset, length);
}

std::optional<uint64_t> StagingMemory::OffsetOf(ConstBytes value) const {
  const ConstBytes all = memory_->bytes();
  // Integers: pointers of different objects must not be compared.
  const auto begin = reinterpret_cast<uintptr_t>(all.data());
  const auto at = reinterpret_cast<uintptr_t>(value.data());
  if (value.empty() || at < begin || at - begin > all.size() ||
      value.size() > all.size() - (at - begin)) {
    return std::nullopt;
  }
  return at - begin;
}

}  // namespace ems::internal
