#pragma once
// The links of a CloudMatrix384 supernode as figures: bandwidth and latency of each plane, after
// the paper (CM), slowed down by one factor.
//
// EMULATED: no such link is here. The figures pace copies of memory (emulated_link.h), or say what
// a transfer would take. With scale 100 every link has a hundredth of its bandwidth and a hundred
// times its latency, so all ratios stay those of the paper on any machine.
#include <array>
#include <cstdint>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"

namespace ems::fabric {

// CM §3.2: UB joins all NPUs and CPUs of a supernode; RDMA the NPUs, also across supernodes; VPC
// the nodes and the datacenter. EVS (block storage of a node) and OBS (a bucket) are reached
// through the VPC card.
enum class Plane : uint8_t { kUb, kRdma, kVpc, kEvs, kObs };
inline constexpr std::array kPlanes = {Plane::kUb, Plane::kRdma, Plane::kVpc, Plane::kEvs,
                                       Plane::kObs};
// "UB", … The view points to static memory.
std::string_view PlaneName(Plane plane);

enum class LinkEnds : uint8_t { kNpuNpu, kNpuCpu, kCpuCpu };
enum class Access : uint8_t { kRead, kWrite };
// kSamePackage: between the two dies of an NPU.
enum class Reach : uint8_t { kSamePackage, kIntraNode, kInterNode };

// One direction of one link.
struct LinkFigures {
  uint64_t bytes_per_s = 0;
  Duration latency{0};                // of kLatencyBytes
  std::string_view bandwidth_source;  // where the figures come from; static memory
  std::string_view latency_source;
  // What a transfer takes besides bytes / bytes_per_s.
  Duration base_latency() const;
  double gb_per_s() const { return static_cast<double>(bytes_per_s) / 1e9; }
  double latency_us() const { return static_cast<double>(latency.count()) / 1e3; }
};
// CM Table 1 measures latency with messages of this size.
inline constexpr uint64_t kLatencyBytes = 512;

// The capacities of the machine's parts, each in one direction, whatever the links on it.
enum class LinkCap : uint8_t { kDieHbm, kDieUb, kCpuUb, kDieRdma, kNodeNic, kObsBucket };

// Time of `bytes` at a rate, rounded to a nanosecond. 0 bytes take none; at most Deadline::kMost.
Duration TimeAt(uint64_t bytes, uint64_t bytes_per_s);

// Threading: immutable.
class EmulatedLinkModel final {
 public:
  static constexpr double kScaleMax = 1e6;

  // `scale`: times slower than the hardware; 1: as fast. Errors: kInvalidArgument  not in
  // [1e-6, 1e6]
  static Result<EmulatedLinkModel> Create(double scale);
  // Not scaled.
  EmulatedLinkModel() = default;

  double scale() const { return scale_; }
  // What one die (VPC, EVS: one node; OBS: the bucket) has for such transfers, alone. `ends`,
  // `access` and `reach` matter where the paper tells them apart: UB all three, RDMA the reach.
  LinkFigures Link(Plane plane, LinkEnds ends, Access access, Reach reach) const;
  uint64_t Cap(LinkCap cap) const;

 private:
  explicit EmulatedLinkModel(double scale) : scale_(scale) {}
  LinkFigures Scaled(LinkFigures figures) const;

  double scale_ = 1;
};

}  // namespace ems::fabric
