#pragma once
// What `emsctl doctor` has found: one line or entry a check. Pure.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace ems::emsctl {

enum class Level : uint8_t { kOk, kWarn, kFail };

struct Finding {
  Level level = Level::kOk;
  std::string check;    // "huge pages", "server a"
  std::string found{};  // the value
  std::string mend{};   // what to do; empty when all is well
};
using Findings = std::vector<Finding>;

// The worst of them; OK of none.
Level WorstOf(std::span<const Finding> findings);

// "WARN  swap  1.2 GiB in use: swapoff -a", and a last line with how many there are of each level.
std::string FindingsText(std::span<const Finding> findings);
// {"result": "WARN", "checks": [{"check", "level", "found", "mend"}]}
nlohmann::ordered_json FindingsJson(std::span<const Finding> findings);

}  // namespace ems::emsctl
