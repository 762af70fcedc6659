#pragma once
// The words in which a namespace's policy is written on the command line, and their values.
#include <optional>
#include <string>
#include <string_view>

#include "cluster/view_cache.h"
#include "common/status.h"

namespace ems::emsctl {

std::string_view DurabilityWord(Durability durability);
// "ssd-relaxed" when its sync is relaxed.
std::string_view DurabilityWord(const NamespaceInfo& info);
std::string_view ChecksumWord(ChecksumPolicy policy);
// Errors: kInvalidArgument  another word; the message names the known ones
Result<Durability> ParseDurability(std::string_view word);
Result<ChecksumPolicy> ParseChecksum(std::string_view word);

// The policies that the user gave; the rest keeps its value.
struct PolicyFlags {
  std::optional<std::string> dram_quota{}, dram_reserved{}, ssd_quota{}, ssd_reserved{};
  std::optional<std::string> durability{}, checksum{}, replicas{};
  bool empty() const {
    return !dram_quota && !dram_reserved && !ssd_quota && !ssd_reserved && !durability &&
           !checksum && !replicas;
  }
};
// Sets the given fields of `info`. Errors: kInvalidArgument  names the flag; `info` is then half
// changed
//   or a reservation above its quota
Status ApplyPolicy(const PolicyFlags& flags, NamespaceInfo* info);

}  // namespace ems::emsctl
