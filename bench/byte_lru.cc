#include "bench/byte_lru.h"

namespace ems::bench {

bool ByteLru::Reference(uint64_t id, uint64_t bytes) {
  const auto place = places_.find(id);
  if (place != places_.end()) {
    order_.splice(order_.end(), order_, place->second);
    return true;
  }
  if (bytes > capacity_bytes_) return false;
  while (bytes_ + bytes > capacity_bytes_) {
    bytes_ -= order_.front().bytes;
    places_.erase(order_.front().id);
    order_.pop_front();
  }
  places_[id] = order_.insert(order_.end(), {id, bytes});
  bytes_ += bytes;
  return false;
}

}  // namespace ems::bench
