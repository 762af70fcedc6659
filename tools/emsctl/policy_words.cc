#include "tools/emsctl/policy_words.h"

#include <array>
#include <utility>

namespace ems::emsctl {
namespace {

constexpr std::array<std::pair<std::string_view, Durability>, 2> kDurabilities = {
    {{"dram", Durability::kDram}, {"ssd", Durability::kSsd}}};
constexpr std::string_view kRelaxed = "ssd-relaxed";
constexpr std::string_view kReplicas = "123";
constexpr std::array<std::pair<std::string_view, ChecksumPolicy>, 3> kChecksums = {
    {{"always", ChecksumPolicy::kAlways},
     {"sampled", ChecksumPolicy::kSampled},
     {"never", ChecksumPolicy::kNever}}};

Status ApplyBytes(std::string_view flag, const std::optional<std::string>& text, uint64_t* bytes) {
  if (!text) return OkStatus();
  const Result<uint64_t> parsed = ParseBytes(*text);
  if (!parsed.ok()) return Prefixed(parsed.status(), flag);
  *bytes = *parsed;
  return OkStatus();
}

Status CheckReserved(std::string_view tier, uint64_t reserved_bytes, uint64_t quota_bytes) {
  if (quota_bytes == 0 || reserved_bytes <= quota_bytes) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "{}: {} reserved are more than the quota of {}; raise the quota or reserve less",
               tier, FormatBytes(reserved_bytes), FormatBytes(quota_bytes));
}

}  // namespace

std::string_view DurabilityWord(Durability durability) {
  for (const auto& [word, value] : kDurabilities) {
    if (value == durability) return word;
  }
  return "default";
}

std::string_view DurabilityWord(const NamespaceInfo& info) {
  return info.durability == Durability::kSsd && info.relaxed_sync ? kRelaxed
                                                                  : DurabilityWord(info.durability);
}

std::string_view ChecksumWord(ChecksumPolicy policy) {
  for (const auto& [word, value] : kChecksums) {
    if (value == policy) return word;
  }
  return "unknown";
}

Result<Durability> ParseDurability(std::string_view word) {
  for (const auto& [known, value] : kDurabilities) {
    if (known == word) return value;
  }
  return Error(StatusCode::kInvalidArgument,
               "--durability {}: dram, ssd and, for a namespace, ssd-relaxed are known", word);
}

Result<ChecksumPolicy> ParseChecksum(std::string_view word) {
  for (const auto& [known, value] : kChecksums) {
    if (known == word) return value;
  }
  return Error(StatusCode::kInvalidArgument, "--checksum {}: always, sampled and never are known",
               word);
}

Status ApplyPolicy(const PolicyFlags& flags, NamespaceInfo* info) {
  EMS_RETURN_IF_ERROR(ApplyBytes("--dram-quota", flags.dram_quota, &info->dram_quota_bytes));
  EMS_RETURN_IF_ERROR(
      ApplyBytes("--dram-reserved", flags.dram_reserved, &info->dram_reserved_bytes));
  EMS_RETURN_IF_ERROR(ApplyBytes("--ssd-quota", flags.ssd_quota, &info->ssd_quota_bytes));
  EMS_RETURN_IF_ERROR(ApplyBytes("--ssd-reserved", flags.ssd_reserved, &info->ssd_reserved_bytes));
  if (flags.durability) {
    info->relaxed_sync = *flags.durability == kRelaxed;
    EMS_ASSIGN_OR_RETURN(info->durability,
                         ParseDurability(info->relaxed_sync ? "ssd" : *flags.durability));
  }
  if (flags.checksum) {
    EMS_ASSIGN_OR_RETURN(info->checksum, ParseChecksum(*flags.checksum));
  }
  if (flags.replicas) {
    const auto known = kReplicas.find(*flags.replicas);
    if (flags.replicas->size() != 1 || known == std::string_view::npos) {
      return Error(StatusCode::kInvalidArgument, "--replicas {}: 1, 2 and 3 are known",
                   *flags.replicas);
    }
    info->replicas = static_cast<uint32_t>(known) + 1;
  }
  EMS_RETURN_IF_ERROR(CheckReserved("DRAM", info->dram_reserved_bytes, info->dram_quota_bytes));
  return CheckReserved("SSD", info->ssd_reserved_bytes, info->ssd_quota_bytes);
}

}  // namespace ems::emsctl
