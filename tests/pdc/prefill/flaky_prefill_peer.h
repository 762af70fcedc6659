#pragma once
// A prefill peer that fails as a test tells it to, in front of a real one.
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "common/guarded.h"
#include "pdc/prefill/prefill_peer.h"

namespace ems::pdc::test {

enum class PrefillFault : uint8_t {
  kNone,
  kRefused,     // Start says kUnavailable
  kQueueFull,   // Start says kResourceExhausted
  kFailed,      // on_done says kUnavailable
  kSilent,      // no event ever comes
  kLostOnWay,   // the first token comes, then on_sent says kUnavailable
  kSilentSend,  // the first token comes, and nothing more
};

// Threading: thread-safe.
class FlakyPrefillPeer final : public PrefillPeer {
 public:
  // `fault`: of the n-th start, from 0. `real` must outlive this.
  using Script = std::function<PrefillFault(int n)>;
  FlakyPrefillPeer(PrefillPeer* real, Script fault) : real_(real), fault_(std::move(fault)) {}

  void SetHealth(Status health) {
    auto set = health_.Lock();
    *set = std::move(health);
  }
  int starts() const { return starts_.load(); }

  const std::string& name() const override { return real_->name(); }
  PrefillHealth health() override {
    PrefillHealth health = real_->health();
    auto set = health_.Lock();
    if (!set->ok()) health.status = *set;
    return health;
  }
  std::shared_ptr<fabric::RingReceiver> ring() override { return real_->ring(); }
  Status Start(PrefillTask task, PrefillEvents events) override {
    const Status lost = Error(StatusCode::kUnavailable, "as scripted");
    const uint64_t id = task.id;
    switch (fault_(starts_.fetch_add(1))) {
      case PrefillFault::kNone:
        break;
      case PrefillFault::kRefused:
        return lost;
      case PrefillFault::kQueueFull:
        return Error(StatusCode::kResourceExhausted, "as scripted");
      case PrefillFault::kFailed:
        events.on_done(lost);
        return OkStatus();
      case PrefillFault::kSilent:
        return OkStatus();
      case PrefillFault::kLostOnWay:
        events.on_done = [this, id, lost, done = std::move(events.on_done),
                          sent = events.on_sent](Result<PrefillOutcome> outcome) {
          real_->Cancel(id);
          done(std::move(outcome));
          sent(lost);
        };
        events.on_sent = [](const Status&) {};
        break;
      case PrefillFault::kSilentSend:
        events.on_done = [this, id,
                          done = std::move(events.on_done)](Result<PrefillOutcome> outcome) {
          real_->Cancel(id);
          done(std::move(outcome));
        };
        events.on_sent = [](const Status&) {};
        break;
    }
    return real_->Start(std::move(task), std::move(events));
  }
  void Cancel(uint64_t id) override { real_->Cancel(id); }

 private:
  PrefillPeer* const real_;
  const Script fault_;
  std::atomic<int> starts_{0};
  Guarded<Status> health_;
};

}  // namespace ems::pdc::test
