#include "tests/simulation/key_log.h"

#include <fmt/core.h>

namespace ems::simulation {

size_t KeyLog::Begin(int key, uint64_t value, TimePoint now) {
  std::vector<Change>& changes = changes_[key];
  changes.push_back({.value = value, .begun = now, .acknowledged = {}});
  return changes.size() - 1;
}

void KeyLog::Acknowledge(int key, size_t number, TimePoint now) {
  Change& change = changes_.at(key)[number];
  if (!change.acknowledged.has_value()) change.acknowledged = now;
}

std::string KeyLog::Check(int key, uint64_t value, TimePoint begun) const {
  if (value == 0 || !checks_) return {};
  const auto known = changes_.find(key);
  const Change* written = nullptr;
  if (known != changes_.end()) {
    for (const Change& change : known->second)
      if (change.value == value) written = &change;
  }
  if (written == nullptr) return fmt::format("key {} has value {}, which nobody put", key, value);
  if (!written->acknowledged.has_value()) return {};  // it may take effect at any time
  for (const Change& change : known->second) {
    const bool replaces = change.acknowledged.has_value() &&
                          change.begun > *written->acknowledged && *change.acknowledged < begun;
    if (replaces) {
      return fmt::format("key {} has value {}, which {} replaced {} ms before the read began", key,
                         value, change.value == 0 ? "a Remove" : std::to_string(change.value),
                         (begun - *change.acknowledged) / std::chrono::milliseconds(1));
    }
  }
  return {};
}

}  // namespace ems::simulation
