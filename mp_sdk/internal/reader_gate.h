#pragma once
// A gate for readers of data without a lock: tells when all readers that were inside when the data
// was unlinked have left, so that it may be freed.
//
// Readers count themselves in and out on one of two sides. A grace period waits until the other
// side is empty, sends newcomers there, and waits until this side is empty: newcomers never hold it
// up. Waiting for both matters: a reader may have chosen its side before the last change and
// counted itself after it.
// Bound: one grace period at a time.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "mp_sdk/internal/stripe.h"

namespace ems::internal {

// Threading: Enter from any thread; the rest on one thread (the owner's).
class ReaderGate final {
 public:
  // Inside as long as it lives.
  class Pass final {
   public:
    explicit Pass(std::atomic<uint64_t>* count) : count_(count) {}
    ~Pass() {
      const uint64_t inside = count_->fetch_sub(1, std::memory_order_release);
      EMS_CHECK(inside != 0, "a reader leaves that has not entered");
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    std::atomic<uint64_t>* count_;
  };

  // Pointers that may be retired must be loaded with seq_cst inside: together with the count
  // (seq_cst, too) this orders the reader before or after the owner's look at the counts.
  // Cost: two atomic operations on a line that few threads share.
  [[nodiscard]] Pass Enter() {
    std::atomic<uint64_t>& count =
        cells_[ThreadStripe()].inside[side_.load(std::memory_order_relaxed)];
    count.fetch_add(1, std::memory_order_seq_cst);
    return Pass(&count);
  }

  // The number of the grace period that covers what has been taken out of sight (stored with
  // seq_cst) before this call.
  uint64_t Retire() {
    wanted_ = stage_ == Stage::kIdle ? done_ + 1 : done_ + 2;
    return wanted_;
  }
  // Moves on as far as it goes without waiting; the last grace period that has ended.
  uint64_t Poll() {
    while (true) {
      const size_t side = side_.load(std::memory_order_relaxed);
      if (stage_ == Stage::kIdle) {
        if (wanted_ <= done_) return done_;
        stage_ = Stage::kOtherSide;
      } else if (!IsEmpty(1 - side)) {
        return done_;
      } else if (stage_ == Stage::kOtherSide) {
        side_.store(1 - side, std::memory_order_seq_cst);
        stage_ = Stage::kThisSide;
      } else {
        ++done_;
        stage_ = Stage::kIdle;
      }
    }
  }
  bool busy() const { return wanted_ > done_; }

 private:
  // The stage of a wait: for readers on the side that newcomers do not use, before and after the
  // sides are switched.
  enum class Stage : uint8_t { kIdle, kOtherSide, kThisSide };
  struct alignas(64) Cell {
    std::array<std::atomic<uint64_t>, 2> inside{};
  };
  bool IsEmpty(size_t side) const {
    return std::ranges::all_of(cells_, [side](const Cell& cell) {
      return cell.inside[side].load(std::memory_order_seq_cst) == 0;
    });
  }

  std::array<Cell, kStripes> cells_;
  std::atomic<size_t> side_{0};
  Stage stage_ = Stage::kIdle;
  uint64_t wanted_ = 0;
  uint64_t done_ = 0;
};

}  // namespace ems::internal
