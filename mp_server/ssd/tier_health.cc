#include "mp_server/ssd/tier_health.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"

namespace ems::ssd {
namespace {

constexpr Duration kBackoffMin = std::chrono::milliseconds(500);
constexpr Duration kBackoffMax = std::chrono::seconds(10);

}  // namespace

std::string_view TierStateName(TierState state) {
  switch (state) {
    case TierState::kOk:
      return "ok";
    case TierState::kDegraded:
      return "degraded";
    case TierState::kOffline:
      break;
  }
  return "offline";
}

std::string TierHealth::reason() {
  auto reason = reason_.Lock();
  return *reason;
}

void TierHealth::BackOff() {
  backoff_ = std::clamp(backoff_ * 2, kBackoffMin, kBackoffMax);
  retry_at_ = clock_->Now() + backoff_;
}

void TierHealth::Degrade(std::string reason) {
  if (state() == TierState::kOk) {
    EMS_LOG(kWarn, "mp_server", "SSD tier degraded, new objects stay in DRAM alone: {}", reason);
    degraded_times_.fetch_add(1, std::memory_order_relaxed);
    BackOff();
  }
  {
    auto text = reason_.Lock();
    *text = std::move(reason);
  }
  state_.store(TierState::kDegraded, std::memory_order_release);
}

bool TierHealth::MayTry() const {
  return state() == TierState::kDegraded && clock_->Now() >= retry_at_;
}

void TierHealth::PutOff(std::string reason) {
  BackOff();
  Degrade(std::move(reason));
}

void TierHealth::Heal() {
  EMS_CHECK(state() == TierState::kDegraded, "healing a tier that is {}", TierStateName(state()));
  state_.store(TierState::kOk, std::memory_order_release);
  EMS_LOG(kInfo, "mp_server", "SSD tier: writing again");
}

void TierHealth::OnWritten() {
  if (state() == TierState::kOk) backoff_ = Duration::zero();
}

}  // namespace ems::ssd
