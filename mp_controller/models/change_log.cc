#include "mp_controller/models/change_log.h"

#include <algorithm>
#include <set>

#include "common/check.h"

namespace ems::controller {

void ChangeLog::Note(uint32_t id) {
  changes_.push_back({.number = ++number_, .id = id});
  if (changes_.size() <= kKept) return;
  floor_ = changes_.front().number;
  changes_.pop_front();
}

void ChangeLog::Put(uint32_t id, uint64_t hash) {
  const auto [at, added] = hashes_.try_emplace(id, hash);
  if (!added) {
    checksum_ ^= at->second;
    at->second = hash;
  }
  checksum_ ^= hash;
  Note(id);
}

void ChangeLog::Remove(uint32_t id) {
  const auto at = hashes_.find(id);
  if (at == hashes_.end()) return;
  checksum_ ^= at->second;
  hashes_.erase(at);
  EMS_CHECK(!hashes_.empty() || checksum_ == 0, "checksum {:016x} of no versions", checksum_);
  Note(id);
}

ChangeLog::Changes ChangeLog::After(uint64_t since) const {
  if (since < floor_ || since > number_) return {.whole = true, .changed = {}, .removed = {}};
  std::set<uint32_t> ids;
  const auto first = std::ranges::upper_bound(changes_, since, {}, &Change::number);
  for (auto at = first; at != changes_.end(); ++at) ids.insert(at->id);
  Changes changes;
  for (const uint32_t id : ids)
    (hashes_.contains(id) ? changes.changed : changes.removed).push_back(id);
  return changes;
}

}  // namespace ems::controller
