#include "bench/ideal_lru.h"

namespace ems::bench {

size_t IdealLru::Request(std::span<const uint64_t> blocks) {
  // Look up, tail-first: `leading` ends as the place of the first block that is absent.
  size_t leading = blocks.size();
  for (size_t i = blocks.size(); i-- > 0;)
    if (!Touch(blocks[i])) leading = i;
  for (size_t i = leading; i-- > 0;) Touch(blocks[i]);
  std::vector<uint64_t> absent;  // tail-first
  for (size_t i = blocks.size(); i-- > leading;)
    if (!Touch(blocks[i])) absent.push_back(blocks[i]);
  for (const uint64_t block : absent) Insert(block);
  return leading;
}

bool IdealLru::Touch(uint64_t block) {
  const auto place = places_.find(block);
  if (place == places_.end()) return false;
  order_.splice(order_.end(), order_, place->second);
  return true;
}

void IdealLru::Insert(uint64_t block) {
  if (blocks_max_ == 0 || places_.contains(block)) return;
  if (places_.size() == blocks_max_) {
    places_.erase(order_.front());
    order_.pop_front();
  }
  places_[block] = order_.insert(order_.end(), block);
}

}  // namespace ems::bench
