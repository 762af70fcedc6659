#pragma once
// How many bytes of a namespace's memory may be held for a purpose that clients can draw out:
// values that are being received, objects that answers pin while they are sent.
//
// Invariant: bytes are held only by Holds. Bound: whoever asks gets all of its bytes while less
// than the limit is held, so at most one request's bytes above it; a value of any size has its
// turn.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace ems::server {

// Threading: thread-safe. Cost: one atomic operation.
class Allowance final {
 public:
  // False, and nothing is held, when `limit` is held already.
  [[nodiscard]] bool Take(uint64_t bytes, uint64_t limit);
  void GiveBack(uint64_t bytes);
  uint64_t held_bytes() const { return held_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> held_{0};
};

// Bytes of an allowance, given back when it goes. Keeps the allowance. Move-only.
// Threading: one thread (holder).
class Hold final {
 public:
  Hold() = default;
  // None yet of `of`, of which at most `limit` may be held.
  Hold(std::shared_ptr<Allowance> of, uint64_t limit) : of_(std::move(of)), limit_(limit) {}
  Hold(Hold&& other) noexcept { Swap(&other); }
  Hold& operator=(Hold&& other) noexcept {
    Hold taken(std::move(other));
    Swap(&taken);
    return *this;
  }
  ~Hold();
  // As Allowance::Take.
  [[nodiscard]] bool Grow(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }
  uint64_t limit() const { return limit_; }

 private:
  void Swap(Hold* other) noexcept {
    std::swap(of_, other->of_);
    std::swap(limit_, other->limit_);
    std::swap(bytes_, other->bytes_);
  }
  std::shared_ptr<Allowance> of_;
  uint64_t limit_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace ems::server
