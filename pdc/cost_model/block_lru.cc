#include "pdc/cost_model/block_lru.h"

#include "common/check.h"

namespace ems::pdc {

void BlockLru::Touch(uint64_t block) {
  const auto it = where_.find(block);
  if (it != where_.end()) {
    order_.splice(order_.begin(), order_, it->second);
    return;
  }
  if (capacity_ == 0) return;
  EMS_CHECK(order_.size() == where_.size(), "{} names, {} in order", where_.size(), order_.size());
  if (where_.size() >= capacity_) {
    where_.erase(order_.back());
    order_.pop_back();
  }
  order_.push_front(block);
  where_[block] = order_.begin();
}

size_t BlockLru::LeadingHits(std::span<const uint64_t> blocks) {
  size_t hits = 0;
  while (hits < blocks.size() && where_.contains(blocks[hits])) ++hits;
  for (size_t i = hits; i-- > 0;) Touch(blocks[i]);
  return hits;
}

void BlockLru::Insert(std::span<const uint64_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) Touch(blocks[i]);
}

}  // namespace ems::pdc
