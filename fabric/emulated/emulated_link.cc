#include "fabric/emulated/emulated_link.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"

namespace ems::fabric {
namespace {

constexpr uint64_t kPieceBytesMin = 4 * kKiB;
constexpr uint64_t kPieceBytesMost = kMiB;
constexpr uint64_t kPiecesPerSecond = 2000;

}  // namespace

TimePoint EmulatedLink::Reserve(uint64_t bytes, TimePoint ready) {
  carried_.fetch_add(bytes, std::memory_order_relaxed);
  constexpr auto kMostNs = static_cast<double>(Duration(Deadline::kMost).count());
  auto queue = queue_.Lock();
  if (queue->free_at < ready) *queue = {.free_at = ready, .spare_ns = 0};
  const double exact =
      queue->spare_ns +
      static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<uint64_t>(1, bytes_per_s_));
  const double whole = std::floor(std::min(exact, kMostNs));
  queue->free_at += Duration(static_cast<int64_t>(whole));
  queue->spare_ns = std::min(exact - whole, 1.0);
  return queue->free_at;
}

EmulatedPath::EmulatedPath(std::vector<EmulatedLink*> links, Duration base_latency)
    : links_(std::move(links)), base_latency_(base_latency) {
  for (const EmulatedLink* link : links_) {
    EMS_CHECK(link != nullptr, "a path over {} links lacks one", links_.size());
    bytes_per_s_ =
        bytes_per_s_ == 0 ? link->bytes_per_s() : std::min(bytes_per_s_, link->bytes_per_s());
  }
  piece_bytes_ = std::clamp(bytes_per_s_ / kPiecesPerSecond / kPieceBytesMin * kPieceBytesMin,
                            kPieceBytesMin, kPieceBytesMost);
}

TimePoint EmulatedTransfer::Add(uint64_t bytes) {
  TimePoint due = due_;
  for (EmulatedLink* link : path_->links_) due = std::max(due, link->Reserve(bytes, due_));
  due_ = due;
  return due_;
}

}  // namespace ems::fabric
