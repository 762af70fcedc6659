#include "pdc/engine/internal/team.h"

#include <fmt/core.h>

#include "common/check.h"

namespace ems::pdc::internal {

Team::Team(size_t members) {
  for (size_t member = 1; member < members; ++member)
    threads_.emplace_back(fmt::format("ems-engine-{}", member), [this, member] { Run(member); });
}

Team::~Team() {
  auto state = state_.Lock();
  state->stopping = true;
  state.Unlock();
  begun_.notify_all();
  threads_.clear();
}

void Team::ForEach(size_t parts, const std::function<void(size_t, size_t)>& work) {
  if (threads_.empty() || parts <= 1) {
    for (size_t part = 0; part < parts; ++part) work(part, 0);
    return;
  }
  next_.store(0, std::memory_order_relaxed);
  auto begin = state_.Lock();
  EMS_CHECK(begin->working == 0, "{} threads still work", begin->working);
  begin->work = &work;
  begin->parts = parts;
  begin->working = threads_.size();
  ++begin->round;
  begin.Unlock();
  begun_.notify_all();
  Share(work, parts, 0);
  auto end = state_.Lock();
  end.Wait(ended_, [](const State& state) { return state.working == 0; });
}

void Team::Share(const std::function<void(size_t, size_t)>& work, size_t parts, size_t member) {
  for (;;) {
    const size_t part = next_.fetch_add(1, std::memory_order_relaxed);
    if (part >= parts) return;
    work(part, member);
  }
}

void Team::Run(size_t member) {
  for (uint64_t round = 1;; ++round) {
    auto state = state_.Lock();
    state.Wait(begun_, [&](const State& s) { return s.stopping || s.round >= round; });
    if (state->stopping) return;
    const auto* const work = state->work;
    const size_t parts = state->parts;
    state.Unlock();
    Share(*work, parts, member);
    auto done = state_.Lock();
    const bool last = --done->working == 0;
    done.Unlock();
    if (last) ended_.notify_all();
  }
}

}  // namespace ems::pdc::internal
