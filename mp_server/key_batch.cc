#include "mp_server/key_batch.h"

#include <span>

namespace ems::server {

void KeyBatch::Say(const std::optional<Found>& found, wire::ItemResult* result) {
  result->status = found ? wire::WireStatus::kOk : wire::WireStatus::kMiss;
  if (!found) return;
  result->value_bytes = found->info.value_bytes;
  result->tier = found->in_dram ? wire::ItemTier::kDram : wire::ItemTier::kSsd;
}

void KeyBatch::Add(std::string_view key, wire::ItemResult* result) {
  keys_[count_] = key;
  results_[count_] = result;
  if (++count_ == keys_.size()) Finish();
}

void KeyBatch::Finish() {
  objects_.FindMany(std::span(keys_).first(count_), touch_, std::span(found_).first(count_));
  for (size_t i = 0; i < count_; ++i) Say(found_[i], results_[i]);
  count_ = 0;
}

}  // namespace ems::server
