#include "mp_server/hot/hot_copier.h"

#include <algorithm>
#include <span>

#include "common/logging.h"

namespace ems::server {

HotCopier::HotCopier(const Options& options)
    : options_(options),
      set_(options.hot),
      calls_(options.ownership, options.timeout),
      counted_(options.clock->Now()) {}

HotCopier::~HotCopier() {
  stop_.Set();
  thread_.Join();
}

void HotCopier::Start() {
  thread_ = Thread("ems-hot", [this] { Loop(); });
}

void HotCopier::Loop() {
  while (!stop_.WaitFor(Step())) {
  }
}

void HotCopier::Follow() {
  const ViewCache::View view = options_.views->view();
  if (view == nullptr || view == view_) return;
  view_ = view;
  calls_.peers().SetNodes(*view);
  set_.Follow(*view, options_.ownership->self());
}

Duration HotCopier::Step() {
  const TimePoint now = options_.clock->Now();
  Follow();
  if (now - counted_ >= kPeriod) {
    set_.Count(options_.keys->sketch().Take(), now - counted_, now);
    // What is read here as a copy is another server's to spread.
    if (view_ != nullptr) set_.Follow(*view_, options_.ownership->self());
    counted_ = now;
    options_.guests->Expire();
  }
  DropRemoved();
  if (view_ != nullptr && now >= send_at_) {
    if (const auto wanted = set_.Next(now)) Send(*wanted, now);
  }
  options_.keys->hints().Show(set_.Hints(now));
  options_.metrics.keys.Set(static_cast<double>(set_.size()));
  options_.metrics.copies.Set(static_cast<double>(set_.CountCopies(now)));
  options_.metrics.guests.Set(static_cast<double>(options_.guests->size()));
  const bool more = view_ != nullptr && set_.Next(now).has_value();
  return more ? std::max(send_at_ - options_.clock->Now(), Duration::zero()) : kLook;
}

void HotCopier::DropRemoved() {
  for (const HotKeys::Removed& removed : options_.keys->TakeRemoved()) {
    const TieredNamespace objects = options_.store->Open(removed.ns);
    if (!objects) continue;
    const HotSet::Key key{.ns = removed.ns,
                          .slot = removed.slot,
                          .key = removed.key,
                          .hash = objects.HashOf(removed.key)};
    const CopyItem item{.slot = removed.slot, .key = removed.key};
    // In vain where the server is gone: there the copy ends with its time.
    for (const NodeId node : set_.HoldersOf(key))
      (void)calls_.Remove(node, removed.ns, std::span(&item, 1));
    set_.Forget(key);
  }
}

void HotCopier::Send(const HotSet::Wanted& wanted, TimePoint now) {
  const TieredNamespace objects = options_.store->Open(wanted.key.ns);
  const ObjectPin pin =
      objects ? objects.Get(wanted.key.key, {.touch = false, .check = true}).pin : ObjectPin();
  if (!pin) return set_.Forget(wanted.key);
  const uint64_t bytes = pin.value().size();
  const CopyItem item{.slot = wanted.key.slot, .key = wanted.key.key};
  const auto breaker = calls_.peers().BreakerOf(wanted.node);
  CopyResults put = Error(StatusCode::kUnavailable, "it is in no view, or does not answer");
  if (breaker != nullptr && breaker->Allow(now)) {
    put = calls_.Put(wanted.node, wanted.key.ns, std::span(&item, 1), std::span(&pin, 1),
                     wire::kFlagHot);
    // What was not sent leaves the rate alone.
    send_at_ = now + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                         static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_s)));
  }
  const bool kept = put.ok() && put->front().status == wire::WireStatus::kOk;
  set_.OnSent(wanted, now, kept);
  if (kept) {
    options_.metrics.sent.Add();
    options_.metrics.bytes.Add(static_cast<double>(bytes));
  } else {
    (put.ok() ? options_.metrics.refused : options_.metrics.failed).Add();
  }
}

}  // namespace ems::server
