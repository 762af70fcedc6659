#pragma once
// The last batches that were published, for subscribers that missed some.
//
// Invariant: without a hole: a sequence number that was left out (events were lost) empties it, so
// a subscriber that misses that one is sent the present state instead. Bound: `batches_max` batches
// and `bytes_max` bytes of them, but always the last one.
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace ems::kv_events {

using Payload = std::shared_ptr<const std::string>;

// Threading: one thread (the publisher's).
class ReplayBuffer final {
 public:
  ReplayBuffer(size_t batches_max, size_t bytes_max)
      : batches_max_(batches_max), bytes_max_(bytes_max) {}

  // `sequence` is next() or, when some are left out, more.
  void Add(uint64_t sequence, Payload payload);
  // The oldest that is here; next() when there is none.
  uint64_t first() const { return next_ - batches_.size(); }
  uint64_t next() const { return next_; }
  // `sequence` in first() to next() - 1.
  const Payload& At(uint64_t sequence) const { return batches_[sequence - first()]; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t batches_max_;
  const size_t bytes_max_;
  std::deque<Payload> batches_;
  size_t bytes_ = 0;
  uint64_t next_ = 0;
};

}  // namespace ems::kv_events
