#pragma once
// What a server says of itself with each heartbeat. For people to see, but for quota_parts, by
// which the controller moves parts of quotas between servers.
#include <cstdint>
#include <vector>

#include "cluster/hit_curve.h"
#include "cluster/quota_part.h"

namespace ems {
namespace v1 {
class NodeUsage;
}

enum class SsdState : uint8_t { kNone, kOk, kDegraded, kOffline };

struct NodeUsage {
  uint64_t dram_used_bytes = 0;  // values
  uint64_t dram_total_bytes = 0;
  uint64_t objects = 0;         // in DRAM
  uint64_t ssd_used_bytes = 0;  // values
  uint64_t ssd_total_bytes = 0;
  SsdState ssd_state = SsdState::kNone;
  // Since the process began: values that were looked for, and those of them that were found.
  uint64_t gets = 0;
  uint64_t hits = 0;
  // Of namespaces, kHitCurvesMax at most.
  std::vector<HitCurve> curves{};
  uint64_t damaged_objects = 0;  // found damaged since then, in memory or on the SSD, and dropped
  std::vector<QuotaPart> quota_parts{};  // kQuotaPartsMax at most
};

void ToProto(const NodeUsage& usage, v1::NodeUsage* proto);
// A state that this build does not know is kNone. Of too many curves or parts the first ones are
// taken.
NodeUsage FromProto(const v1::NodeUsage& proto);

}  // namespace ems
