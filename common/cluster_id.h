#pragma once
// Which cluster something belongs to: a random number that a controller makes once for its store.
// Servers keep it in their folders, views and greetings carry it.
#include <fmt/core.h>

#include <cstdint>
#include <string>

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

}  // namespace ems
