#include "mp_controller/etcd/election.h"

#include <chrono>
#include <utility>

#include "common/clock.h"
#include "common/logging.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

// Looks and renewals are spread over a lease: three renewals fit into it, and a follower sees each.
constexpr int kLooksPerLease = 10;
constexpr int kRenewalsPerLease = 3;
constexpr Duration kLostWithin = milliseconds(50);

// Something else answers where etcd is expected. It is a mistake unless etcd was there before: then
// it is what a proxy, or a port that has another owner, says until etcd is back.
bool IsStranger(const Status& status) {
  return status.code() == StatusCode::kUnauthenticated ||
         status.code() == StatusCode::kUnimplemented;
}

// Of a tenure's beginning, when etcd has answered already.
bool IsPassing(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded ||
         status.code() == StatusCode::kCancelled || IsStranger(status);
}

// Of what a follower asks etcd: no time mends it. A disk quota that is used up does not count: it
// may be raised.
bool IsMistake(const Status& status, bool answered) {
  return (IsStranger(status) && !answered) || status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kFailedPrecondition;
}

}  // namespace

Election::Election(Parts parts)
    : parts_(std::move(parts)),
      tenure_("ems-tenure", [this] { RunTenures(); }),
      elect_("ems-elect", [this] { Elect(); }) {}

Election::~Election() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  changed_.notify_all();
  tenure_.Join();  // its writes need the lease still
  stop_.Set();
  elect_.Join();
  parts_.lease->Release();
}

Status Election::fault() {
  auto state = state_.Lock();
  return state->fault;
}

void Election::GoTo(Phase phase) {
  {
    auto state = state_.Lock();
    state->phase = phase;
  }
  changed_.notify_all();
}

void Election::Fail(const Status& fault) {
  auto state = state_.Lock();
  if (state->fault.ok()) state->fault = fault;
}

void Election::Report(const Status& error) {
  if (error.ok()) {
    if (!std::exchange(reported_, "").empty())
      EMS_LOG(kInfo, "mp_controller", "etcd answers again");
    return;
  }
  if (parts_.on_error) parts_.on_error();
  std::string text = ToString(error);
  if (reported_.empty()) EMS_LOG(kWarn, "mp_controller", "{}", text);
  reported_ = std::move(text);
}

void Election::Look() {
  const Result<bool> taken = parts_.lease->TryTake();
  Report(taken.status());
  if (!taken.ok()) {
    if (IsMistake(taken.status(), answered_)) Fail(taken.status());
    return;
  }
  answered_ = true;
  if (*taken) return GoTo(Phase::kLeading);
  if (!parts_.look) return;
  const Status seen = parts_.look();
  if (IsMistake(seen, answered_)) Fail(seen);
}

void Election::Elect() {
  const Duration lease = parts_.lease->options().lease;
  TimePoint renewed{};
  do {
    Phase phase = Phase::kFollowing;
    bool idle = false;
    {
      auto state = state_.Lock();
      phase = state->phase;
      idle = state->stopping || !state->fault.ok();
    }
    const TimePoint now = Clock::System().Now();
    if (phase == Phase::kEnded) {
      parts_.lease->Release();
      GoTo(Phase::kFollowing);
    } else if (phase == Phase::kFollowing) {
      if (!idle) Look();
      renewed = now;
    } else if (!parts_.lease->Holds()) {
      parts_.lease->Lose("its lease has ended: etcd was not reached, or this process stood still");
    } else if (now - renewed >= lease / kRenewalsPerLease) {
      renewed = now;
      Report(parts_.lease->Renew());
    }
  } while (!stop_.WaitFor(lease / kLooksPerLease));
}

void Election::RunTenures() {
  const auto lost = [this](const State& state) { return state.stopping || !parts_.lease->Holds(); };
  while (true) {
    {
      auto state = state_.Lock();
      state.Wait(changed_, [](const State& s) { return s.stopping || s.phase == Phase::kLeading; });
      if (state->stopping) return;
    }
    const Status begun = parts_.lead();
    if (!begun.ok()) {
      if (!IsPassing(begun)) Fail(begun);
      parts_.lease->Lose(ToString(begun));
    }
    bool stopping = false;
    while (true) {
      auto state = state_.Lock();
      state.WaitFor(changed_, kLostWithin, lost);
      stopping = state->stopping;
      if (lost(*state)) break;
    }
    parts_.end();
    if (stopping) return;
    const Status followed = parts_.follow ? parts_.follow() : OkStatus();
    if (!followed.ok()) Fail(followed);
    GoTo(Phase::kEnded);
  }
}

}  // namespace ems::controller
