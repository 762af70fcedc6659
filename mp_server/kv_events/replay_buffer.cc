#include "mp_server/kv_events/replay_buffer.h"

#include <utility>

#include "common/check.h"

namespace ems::kv_events {

void ReplayBuffer::Add(uint64_t sequence, Payload payload) {
  EMS_CHECK(sequence >= next_, "batch {} after {}", sequence, next_);
  if (sequence != next_) {
    batches_.clear();
    bytes_ = 0;
  }
  bytes_ += payload->size();
  batches_.push_back(std::move(payload));
  next_ = sequence + 1;
  while (batches_.size() > 1 && (batches_.size() > batches_max_ || bytes_ > bytes_max_)) {
    bytes_ -= batches_.front()->size();
    batches_.pop_front();
  }
}

}  // namespace ems::kv_events
