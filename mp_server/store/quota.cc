#include "mp_server/store/quota.h"

namespace ems::server {

bool Quota::TryCharge(uint64_t bytes) {
  const uint64_t limit = this->limit();
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (limit != 0 && (used > limit || bytes > limit - used)) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

void Quota::Refund(uint64_t bytes) {
  const uint64_t before = used_.fetch_sub(bytes, std::memory_order_relaxed);
  EMS_CHECK(before >= bytes, "refund of {} with {} charged", bytes, before);
}

}  // namespace ems::server
