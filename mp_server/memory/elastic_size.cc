#include "mp_server/memory/elastic_size.h"

#include <algorithm>
#include <utility>

#include "common/bytes.h"

namespace ems::server {
namespace {

// Clients unmap what has gone within some milliseconds, and only then it is free.
constexpr Duration kBetweenShrinks = std::chrono::milliseconds(100);
constexpr Duration kComesBack = std::chrono::seconds(1);
constexpr Duration kBetweenGrowths = std::chrono::seconds(1);
// Of a while, that tasks have waited for memory.
constexpr double kStalledShare = 0.1;
// Tasks of another cgroup may wait for their own limit: that is not helped from here. Where less
// than so many times keep_free_bytes is left they are taken to wait for the machine.
constexpr uint64_t kScarce = 2;

}  // namespace

uint64_t ElasticSize::Clamp(uint64_t bytes, uint64_t bytes_most) const {
  const uint64_t most = std::max(bytes_most, options_.bytes_min);
  if (bytes >= most) return most;
  return std::max(bytes / options_.step_bytes * options_.step_bytes, options_.bytes_min);
}

uint64_t ElasticSize::First(const MemoryReading& reading, uint64_t bytes_most) const {
  return Clamp(
      reading.available_bytes - std::min(reading.available_bytes, options_.keep_free_bytes),
      bytes_most);
}

bool ElasticSize::IsStalled(const MemoryReading& reading, TimePoint now) {
  const auto passed = std::chrono::duration<double, std::micro>(now - looked_at_).count();
  const uint64_t before = std::exchange(stalled_us_, reading.stalled_us);
  const bool first = looked_at_ == TimePoint{};
  looked_at_ = now;
  if (first || passed <= 0 || reading.stalled_us < before) return false;
  return static_cast<double>(reading.stalled_us - before) >= kStalledShare * passed;
}

uint64_t ElasticSize::Next(const MemoryReading& reading, const Pool& pool, TimePoint now) {
  const bool stalled = IsStalled(reading, now);
  // As it will be once the pool has its size. What has not come back for a second is in use.
  int64_t coming = static_cast<int64_t>(pool.bytes_held) - static_cast<int64_t>(pool.bytes);
  if (now - shrunk_at_ >= kComesBack) coming = std::min<int64_t>(coming, 0);
  const int64_t left = static_cast<int64_t>(reading.available_bytes) + coming;
  const auto keep = static_cast<int64_t>(options_.keep_free_bytes);
  const auto step = static_cast<int64_t>(options_.step_bytes);
  int64_t needed = std::max<int64_t>(keep - left, 0);
  if (stalled && left < static_cast<int64_t>(kScarce) * keep) needed = std::max(needed, step);
  if (needed > 0 || stalled) roomy_since_ = {};
  if (needed > 0) {
    if (now - shrunk_at_ < kBetweenShrinks) return Clamp(pool.bytes, pool.bytes_most);
    shrunk_at_ = now;
    const auto bytes = RoundUp(static_cast<uint64_t>(needed), options_.step_bytes);
    return Clamp(pool.bytes - std::min(pool.bytes, bytes), pool.bytes_most);
  }
  // With less than two steps above what is kept free, growing would soon be undone.
  const int64_t room = left - keep;
  if (stalled || room < 2 * step) {
    roomy_since_ = {};
    return Clamp(pool.bytes, pool.bytes_most);
  }
  if (roomy_since_ == TimePoint{}) roomy_since_ = now;
  if (now - roomy_since_ < options_.grow_after) return Clamp(pool.bytes, pool.bytes_most);
  roomy_since_ = now - options_.grow_after + std::min(kBetweenGrowths, options_.grow_after);
  return Clamp(pool.bytes + RoundUp(static_cast<uint64_t>(room / 2), options_.step_bytes),
               pool.bytes_most);
}

}  // namespace ems::server
