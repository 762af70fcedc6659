#pragma once
// Which cluster something belongs to: a random number that a controller makes once for its store.
// Servers keep it in their folders, views and greetings carry it.
#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"

namespace ems {

using ClusterId = StrongId<struct ClusterIdTag, uint64_t>;
// Not known: nothing has been said yet, or by older software.
inline constexpr ClusterId kNoCluster{0};

// Both are known, and differ.
constexpr bool AreStrangers(ClusterId a, ClusterId b) {
  return a != kNoCluster && b != kNoCluster && a != b;
}

// 16 hexadecimal digits, as people compare it.
inline std::string ClusterText(ClusterId cluster) {
  return cluster == kNoCluster ? "(unknown)" : fmt::format("{:016x}", cluster.value());
}
// What ClusterText has written; nothing: it is no cluster's id.
inline std::optional<ClusterId> ParseCluster(std::string_view text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  if (text.size() != 16 || error != std::errc() || stop != end || value == 0) return std::nullopt;
  return ClusterId(value);
}

}  // namespace ems
