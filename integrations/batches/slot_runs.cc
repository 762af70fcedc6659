#include "integrations/batches/slot_runs.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ems::batches {
namespace {

using context::SlotRun;

struct Taken {
  SlotRun run;
  size_t block = 0;
};

uint64_t EndOf(const SlotRun& run) { return run.start_slot + run.tokens; }

bool InOrder(std::span<const SlotRun> runs) {
  for (size_t i = 1; i < runs.size(); ++i) {
    if (EndOf(runs[i - 1]) > runs[i].start_slot) return false;
  }
  return true;
}

// The number of leading `slots` (token slots) that are next, next + 1, ….
size_t FollowersOf(int64_t next, std::span<const int64_t> slots) {
  using Pair = int64_t __attribute__((vector_size(16)));
  constexpr size_t kAtOnce = 32;  // without a branch each
  Pair wanted = {next, next + 1};
  size_t count = 0;
  for (; count + kAtOnce <= slots.size(); count += kAtOnce) {
    Pair other = {};
    for (size_t i = 0; i < kAtOnce; i += 2) {
      Pair two;
      std::memcpy(&two, &slots[count + i], sizeof(two));
      other |= two ^ wanted;
      wanted += 2;
    }
    if ((other[0] | other[1]) != 0) break;
  }
  while (count < slots.size() && slots[count] == next + static_cast<int64_t>(count)) ++count;
  return count;
}

// `run_ends`: of the blocks of one group, counted from the start of all runs.
Status CheckGroup(std::span<const SlotRun> runs, std::span<const size_t> run_ends, size_t begin) {
  if (InOrder(runs.subspan(begin, run_ends.back() - begin))) return OkStatus();
  std::vector<Taken> all;
  all.reserve(run_ends.back() - begin);
  for (size_t block = 0, at = begin; block < run_ends.size(); ++block) {
    for (; at < run_ends[block]; ++at) all.push_back({runs[at], block});
  }
  std::sort(all.begin(), all.end(),
            [](const Taken& a, const Taken& b) { return a.run.start_slot < b.run.start_slot; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (EndOf(all[i - 1].run) <= all[i].run.start_slot) continue;
    return Error(StatusCode::kInvalidArgument,
                 "slot {} is to be written by block {} and again by block {}",
                 all[i].run.start_slot, all[i - 1].block, all[i].block);
  }
  return OkStatus();
}

}  // namespace

Status CheckRun(uint64_t slots, int64_t start, int64_t tokens) {
  if (tokens <= 0) {
    return Error(StatusCode::kInvalidArgument, "a block of {} tokens makes no sense", tokens);
  }
  const auto have = static_cast<int64_t>(slots);
  if (start >= 0 && start < have && tokens <= have - start) return OkStatus();
  if (tokens == 1) {
    return Error(StatusCode::kInvalidArgument, "slot {} is not in 0 to {}", start, have - 1);
  }
  return Error(StatusCode::kInvalidArgument, "{} slots from {} on are not all in 0 to {}", tokens,
               start, have - 1);
}

Status SlotRunBuilder::NextBlock() {
  if (block_ == lengths_.size()) {
    return Error(StatusCode::kInvalidArgument, "offsets sum up to {}, there are more slots",
                 taken_);
  }
  const int64_t length = lengths_[block_++];
  if (length <= 0) {
    return Error(StatusCode::kInvalidArgument, "a block of {} tokens makes no sense", length);
  }
  left_ = static_cast<uint64_t>(length);
  return OkStatus();
}

Status SlotRunBuilder::EndRun() {
  EMS_CHECK(tokens_ > 0, "a run that has not begun");
  EMS_RETURN_IF_ERROR(CheckRun(slots_, start_, tokens_));
  runs_->push_back({static_cast<uint64_t>(start_), static_cast<uint32_t>(tokens_)});
  tokens_ = 0;
  return OkStatus();
}

Status SlotRunBuilder::Add(std::span<const int64_t> slots) {
  while (!slots.empty()) {
    if (left_ == 0) EMS_RETURN_IF_ERROR(NextBlock());
    const auto mine = slots.first(std::min<uint64_t>(slots.size(), left_));
    // What a run may have is bounded by the layout, so that no sum here overflows.
    for (size_t i = 0; i < mine.size();) {
      if (tokens_ == 0) {
        start_ = mine[i];
        EMS_RETURN_IF_ERROR(CheckRun(slots_, start_, 1));
      }
      const int64_t next = start_ + tokens_;
      const size_t follow = FollowersOf(next, mine.subspan(i));
      tokens_ += static_cast<int64_t>(follow);
      i += follow;
      if (i < mine.size()) EMS_RETURN_IF_ERROR(EndRun());
    }
    slots = slots.subspan(mine.size());
    taken_ += mine.size();
    left_ -= mine.size();
    if (left_ > 0) continue;
    EMS_RETURN_IF_ERROR(EndRun());
    run_ends_->push_back(runs_->size());
  }
  return OkStatus();
}

Status SlotRunBuilder::Finish() const {
  if (taken_ == 0) return Error(StatusCode::kInvalidArgument, "slot_mapping is empty");
  if (left_ == 0 && block_ == lengths_.size()) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "offsets sum up to more than the {} slots", taken_);
}

Status CheckOnce(size_t blocks, std::span<const SlotRun> runs, std::span<const size_t> run_ends) {
  if (blocks == 0) return OkStatus();
  EMS_CHECK(run_ends.size() % blocks == 0, "{} ends of runs, {} blocks a group", run_ends.size(),
            blocks);
  for (size_t at = 0; at < run_ends.size(); at += blocks) {
    const size_t begin = at == 0 ? 0 : run_ends[at - 1];
    EMS_RETURN_IF_ERROR(CheckGroup(runs, run_ends.subspan(at, blocks), begin));
  }
  return OkStatus();
}

Status CheckPages(const context::KvLayout& layout, size_t blocks, std::span<const SlotRun> runs,
                  std::span<const size_t> run_ends, bool one_each) {
  EMS_CHECK(run_ends.size() == blocks * layout.groups(), "{} ends of runs, {} blocks a group",
            run_ends.size(), blocks);
  for (size_t i = 0, at = 0; i < run_ends.size();) {
    const uint64_t page = layout.block_tokens(static_cast<uint32_t>(i / blocks));
    for (size_t block = 0; block < blocks; ++block, ++i) {
      const bool is_one = run_ends[i] - at == 1 && runs[at].tokens == page;
      for (; at < run_ends[i]; ++at) {
        const SlotRun& run = runs[at];
        const bool whole = is_one || (!one_each && run.tokens % page == 0);
        if (whole && run.start_slot % page == 0) continue;
        return Error(StatusCode::kInvalidArgument,
                     "block {} has {} tokens from slot {} on, which are not {} of {} tokens", block,
                     run.tokens, run.start_slot, one_each ? "one whole page" : "whole pages", page);
      }
    }
  }
  return OkStatus();
}

}  // namespace ems::batches
