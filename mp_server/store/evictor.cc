#include "mp_server/store/evictor.h"

#include "common/check.h"

namespace ems::server {
namespace {

constexpr int kIdleRounds = 10;  // without Puts a round has ten times the interval

}  // namespace

Evictor::Evictor(ObjectStore* store, Duration interval) : store_(store), interval_(interval) {
  EMS_CHECK(store != nullptr && interval > Duration::zero(), "an interval of {} ns",
            interval.count());
  thread_ = Thread("ems-evict", [this] { Run(); });
}

Evictor::~Evictor() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

void Evictor::Poke() {
  {
    auto state = state_.Lock();
    state->poked = true;
  }
  wakeup_.notify_all();
}

uint64_t Evictor::rounds() {
  auto state = state_.Lock();
  return state->rounds;
}

void Evictor::Run() {
  bool active = false;
  while (true) {
    {
      auto state = state_.Lock();
      state.WaitFor(wakeup_, active ? interval_ : kIdleRounds * interval_,
                    [](const State& s) { return s.stopping || s.poked; });
      if (state->stopping) return;
      state->poked = false;
    }
    active = store_->EvictToWatermark();
    auto state = state_.Lock();
    ++state->rounds;
  }
}

}  // namespace ems::server
