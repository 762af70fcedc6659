#include "bench/harness/byte_lru.h"

namespace ems::bench {

bool ByteLru::Touch(uint64_t id) {
  const auto place = places_.find(id);
  if (place == places_.end()) return false;
  order_.splice(order_.end(), order_, place->second);
  return true;
}

void ByteLru::Insert(uint64_t id, uint64_t bytes) {
  if (bytes > capacity_bytes_ || places_.contains(id)) return;
  while (bytes_ + bytes > capacity_bytes_) {
    bytes_ -= order_.front().bytes;
    places_.erase(order_.front().id);
    order_.pop_front();
  }
  places_[id] = order_.insert(order_.end(), {id, bytes});
  bytes_ += bytes;
}

void ByteLru::EraseIf(const std::function<bool(uint64_t id)>& gone) {
  for (auto object = order_.begin(); object != order_.end();) {
    if (!gone(object->id)) {
      ++object;
      continue;
    }
    bytes_ -= object->bytes;
    places_.erase(object->id);
    object = order_.erase(object);
  }
}

}  // namespace ems::bench
