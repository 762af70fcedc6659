#include "mp_sdk/internal/staging_memory.h"

#include <algorithm>
#include <iterator>

#include "common/check.h"
#include "fabric/shm/shm_segment.h"

namespace ems::internal {

StagingMemory::StagingMemory(std::unique_ptr<fabric::SharedMemory> memory)
    : memory_(std::move(memory)) {
  auto state = state_.Lock();
  state->wanted_end = std::min<uint64_t>(kFirstBytes, memory_->bytes().size());
}

Result<std::shared_ptr<StagingMemory>> StagingMemory::Create(uint64_t bytes) {
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<fabric::SharedMemory> memory,
                       fabric::SharedMemory::Create("ems-staging", bytes));
  return std::shared_ptr<StagingMemory>(new StagingMemory(std::move(memory)));
}

Result<StagingBuffer> StagingMemory::Allocate(uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a staging buffer of 0 bytes");
  const uint64_t size = memory_->bytes().size();
  const uint64_t length = bytes > size ? size + kUnit : RoundUp(bytes, kUnit);
  std::optional<uint64_t> offset = Cut(size, length);
  while (!offset) {  // again only if another thread was faster with what was made
    const uint64_t end = EndFor(length);
    if (end > size) {
      return Error(StatusCode::kResourceExhausted, "staging buffer of {}: no such room in {}",
                   FormatBytes(bytes), FormatBytes(size));
    }
    EMS_RETURN_IF_ERROR(MakeTo(end));
    offset = Cut(size, length);
  }
  return StagingBuffer(shared_from_this(), memory_->bytes().subspan(*offset, bytes));
}

StagingBuffer StagingMemory::AllocateBelow(uint64_t end, uint64_t bytes) {
  const std::optional<uint64_t> offset = Cut(end, RoundUp(bytes, kUnit));
  if (!offset) return {};
  return StagingBuffer(shared_from_this(), memory_->bytes().subspan(*offset, bytes));
}

// The start of the shortest free range of `length` at least that begins so far before `below`; the
// rest of it stays free.
std::optional<uint64_t> StagingMemory::Cut(uint64_t below, uint64_t length) {
  auto state = state_.Lock();
  auto best = state->by_length.lower_bound({length, 0});
  const auto end = state->by_length.end();
  while (best != end && (below < length || best->second > below - length)) ++best;
  if (best == end) return std::nullopt;
  const auto [room, offset] = *best;
  state->Drop(offset, room);
  if (room > length) state->Add(offset + length, room - length);
  return offset;
}

uint64_t StagingMemory::EndFor(uint64_t length) {
  auto state = state_.Lock();
  return state->EndFor(length);
}

Status StagingMemory::MakeTo(uint64_t end) {
  uint64_t from = 0, to = 0;
  {
    auto state = state_.Lock();
    from = state->end;
    to = std::min(RoundUp(end, fabric::kHugePageBytes), memory_->bytes().size());
    if (to <= from) return OkStatus();
    state->end = to;
    state->making.insert(from);
  }
  const Status made = memory_->Populate(from, to - from);
  auto state = state_.Lock();
  if (made.ok()) {
    state->making.erase(from);
    AddFree(*state, from, to - from);
  } else if (state->end == to) {
    state->making.erase(from);
    state->end = from;
  }  // else a hole stays, since there is more behind it: servers map what lies before it
  return made;
}

uint64_t StagingMemory::made_bytes() {
  auto state = state_.Lock();
  return state->making.empty() ? state->end : *state->making.begin();
}

void StagingMemory::Want(uint64_t bytes) {
  auto state = state_.Lock();
  const uint64_t end = state->EndFor(RoundUp(bytes, kUnit));
  if (end <= memory_->bytes().size()) state->wanted_end = std::max(state->wanted_end, end);
}

bool StagingMemory::wants_more() {
  auto state = state_.Lock();
  return state->end < state->wanted_end;
}

Status StagingMemory::MakeMore(uint64_t bytes) {
  uint64_t end = 0;
  {
    auto state = state_.Lock();
    end = std::min(state->wanted_end, state->end + bytes);
  }
  return MakeTo(end);
}

void StagingMemory::Free(MutableBytes bytes) {
  const auto at = OffsetOf(bytes);
  EMS_CHECK(at.has_value() && *at % kUnit == 0, "{} B come back that are no buffer", bytes.size());
  auto state = state_.Lock();
  AddFree(*state, *at, RoundUp(bytes.size(), kUnit));
}

void StagingMemory::AddFree(State& state, uint64_t offset, uint64_t length) {
  const auto after = state.by_offset.lower_bound(offset);
  std::pair<uint64_t, uint64_t> next;
  if (after != state.by_offset.end()) next = *after;
  if (after != state.by_offset.begin()) {
    const auto [before, before_length] = *std::prev(after);
    EMS_CHECK(before + before_length <= offset, "a buffer is given back twice");
    if (before + before_length == offset) {
      state.Drop(before, before_length);
      offset = before;
      length += before_length;
    }
  }
  if (next.second != 0 && offset + length == next.first) {
    state.Drop(next.first, next.second);
    length += next.second;
  }
  state.Add(offset, length);
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
