#include "mp_server/answer_room.h"

#include <algorithm>

#include "common/check.h"

namespace ems::server {
namespace {

// Small objects are not counted one by one in what all threads share.
constexpr uint64_t kPinStepBytes = 64 * kKiB;

}  // namespace

std::optional<uint64_t> AnswerRoom::Take(uint64_t bytes) {
  if (bytes > left_ && values_ > 0) return std::nullopt;
  const uint64_t taken = std::min(bytes, left_);
  left_ -= taken;
  ++values_;
  return taken;
}

void AnswerRoom::GiveBack(uint64_t taken) {
  EMS_CHECK(values_ > 0 && taken <= kAnswerBytesMax - left_, "{} bytes of none", taken);
  left_ += taken;
  --values_;
}

bool AnswerRoom::Pin(uint64_t object_bytes) {
  const uint64_t pinned = pinned_bytes_ + object_bytes;
  if (pinned_bytes_ > 0 && pinned > pins_max_) return false;
  const uint64_t step = std::min(kPinStepBytes, pins_max_ / 16);
  if (pinned > pins_.bytes() && !pins_.Grow(std::max(pinned - pins_.bytes(), step))) return false;
  pinned_bytes_ = pinned;
  return true;
}

}  // namespace ems::server
