#include "ems_model/progress_meter.h"

#include "common/check.h"

namespace ems::model {
namespace {

constexpr double kLeftSecondsMax = 30.0 * 86'400;  // more is no forecast

}  // namespace

void ProgressMeter::Add(TimePoint now, uint64_t job, uint64_t done) {
  if (job != job_ || (!samples_.empty() && done < samples_.back().done)) samples_.clear();
  job_ = job;
  // Frequent samples replace the last one, so that their number stays bounded.
  if (samples_.size() >= 2 && now - samples_[samples_.size() - 2].at < kWindow / kSamplesMax) {
    samples_.back() = {now, done};
  } else {
    samples_.push_back({now, done});
  }
  while (samples_.size() > 2 &&
         (now - samples_.front().at > kWindow || samples_.size() > kSamplesMax))
    samples_.pop_front();
}

double ProgressMeter::bytes_per_s() const {
  if (samples_.size() < 2) return 0;
  const auto [at, done] = samples_.front();
  const Duration took = samples_.back().at - at;
  if (took < std::chrono::milliseconds(1)) return 0;
  return static_cast<double>(samples_.back().done - done) /
         std::chrono::duration<double>(took).count();
}

std::optional<Duration> ProgressMeter::TimeLeft(uint64_t total) const {
  const double rate = bytes_per_s();
  if (rate <= 0) return std::nullopt;
  EMS_CHECK(!samples_.empty(), "a rate of nothing");
  const uint64_t done = samples_.back().done;
  const double seconds = done >= total ? 0 : static_cast<double>(total - done) / rate;
  if (seconds > kLeftSecondsMax) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace ems::model
