#include "pdc/rpc/internal/peer_watch.h"

#include <utility>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/logging.h"
#include "common/retry.h"
#include "pdc/scheduling/stall_watch.h"

namespace ems::pdc::rpc {

PeerWatch::PeerWatch(std::string name, const PeerWatchOptions& options, Hooks hooks)
    : name_(std::move(name)),
      options_(options),
      hooks_(std::move(hooks)),
      status_(std::in_place,
              Error(StatusCode::kUnavailable, "{} has not been connected yet", name_)) {
  thread_ = Thread("ems-pulse", [this] { Run(); });
}

PeerWatch::~PeerWatch() { Stop(); }

void PeerWatch::Stop() {
  {
    auto wake = wake_.Lock();
    wake->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

bool PeerWatch::IsStopping() {
  auto wake = wake_.Lock();
  return wake->stopping;
}

bool PeerWatch::WaitForPulse(Duration timeout) {
  auto wake = wake_.Lock();
  (void)wake.WaitFor(wakeup_, timeout,
                     [](const Wake& now) { return now.stopping || now.suspected; });
  wake->suspected = false;
  return wake->stopping;
}

void PeerWatch::Suspect(const Status& why) {
  if (!status().ok()) return;
  Set(Error(StatusCode::kUnavailable, "{}: a call broke: {}", name_, ToString(why)));
  {
    // After the status: the pulse that follows sets it again.
    auto wake = wake_.Lock();
    wake->suspected = true;
  }
  wakeup_.notify_all();
}

Status PeerWatch::status() {
  auto status = status_.Lock();
  return *status;
}

void PeerWatch::Set(const Status& status) {
  bool changed = false;
  {
    auto now = status_.Lock();
    changed = now->code() != status.code();
    *now = status;
  }
  if (!changed) return;
  if (status.ok()) {
    EMS_LOG(kInfo, "pdc", "peer up name={}", name_);
  } else {
    EMS_LOG(kWarn, "pdc", "peer down reason=\"{}\"", ToString(status));
  }
}

void PeerWatch::Run() {
  Backoff backoff(Hash64(AsBytes(name_)), std::chrono::milliseconds(50));
  while (!IsStopping()) {
    const Status connected = hooks_.connect();
    if (!connected.ok()) {
      Set(Prefixed(connected, name_));
      auto wake = wake_.Lock();
      (void)wake.WaitFor(wakeup_, backoff.Next(), [](const Wake& now) { return now.stopping; });
      continue;
    }
    backoff.Reset();
    hooks_.up();  // first: a caller that sees it up can use it
    Set(OkStatus());
    const Status why = Watch();
    if (why.ok()) return;
    Set(why);
    hooks_.down(why, true);
  }
}

Status PeerWatch::Watch() {
  StallWatch stall(options_.stall_limit);
  TimePoint answered = Clock::System().Now();
  bool up = true;
  while (!WaitForPulse(options_.pulse_every)) {
    const Result<PulseNews> news = hooks_.pulse();
    const TimePoint now = Clock::System().Now();
    if (!news.ok()) {
      const bool dead =
          news.status().code() == StatusCode::kUnavailable || now - answered > options_.dead_after;
      const Status why = Error(dead ? StatusCode::kUnavailable : StatusCode::kDeadlineExceeded,
                               "{} does not answer: {}", name_, ToString(news.status()));
      if (IsStopping()) return OkStatus();
      if (dead) return why;
      Set(why);
      continue;
    }
    answered = now;
    const Status moving = Prefixed(stall.Observe(news->ticks, news->busy, now), name_);
    if (moving.ok() && !up) hooks_.up();
    Set(moving.ok() ? Prefixed(news->status, name_) : moving);
    if (!moving.ok() && up) hooks_.down(moving, false);
    up = moving.ok();
  }
  return OkStatus();
}

}  // namespace ems::pdc::rpc
