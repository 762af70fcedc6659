#include "mp_server/store/allowance.h"

#include "common/check.h"

namespace ems::server {

bool Allowance::Take(uint64_t bytes, uint64_t limit) {
  uint64_t held = held_.load(std::memory_order_relaxed);
  do {
    if (held >= limit) return false;
  } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
  return true;
}

void Allowance::GiveBack(uint64_t bytes) {
  const uint64_t before = held_.fetch_sub(bytes, std::memory_order_relaxed);
  EMS_CHECK(before >= bytes, "{} bytes given back of {}", bytes, before);
}

Hold::~Hold() {
  if (bytes_ > 0) of_->GiveBack(bytes_);
}

bool Hold::Grow(uint64_t bytes) {
  EMS_CHECK(of_ != nullptr, "a hold of nothing grows by {} bytes", bytes);
  if (!of_->Take(bytes, limit_)) return false;
  bytes_ += bytes;
  return true;
}

}  // namespace ems::server
