#include "fabric/emulated/link_model.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace ems::fabric {
namespace {

constexpr std::string_view kTable1 = "CM Table 1";
constexpr std::string_view kNone = "assumed: no paper has it";
// DSV3 Table 5, RoCE: 64 bytes, same leaf and across leaves.
constexpr std::string_view kRoce = "DSV3 Table 5, RoCE, 64 B";

constexpr uint64_t Gb(uint64_t gb_per_s) { return gb_per_s * 1'000'000'000; }
constexpr uint64_t Gbit(uint64_t gbit_per_s) { return gbit_per_s * 125'000'000; }
constexpr Duration Ns(int64_t ns) { return Duration(ns); }

// CM §3.3.1: the dies of a package are joined by 270 GB/s a direction. No latency is given: that of
// the node is an upper bound.
constexpr uint64_t kCrossDie = Gb(270);

LinkFigures Ub(LinkEnds ends, Access access, Reach reach) {
  const bool inter = reach == Reach::kInterNode;
  const bool read = access == Access::kRead;
  if (ends == LinkEnds::kCpuCpu) {
    // CM §3.3.2 has the sockets' bandwidth; latency as between NPU and CPU.
    const auto like = Ub(LinkEnds::kNpuCpu, access, reach);
    return {Gb(160), like.latency, "CM 3.3.2", "assumed: as NPU-CPU of CM Table 1"};
  }
  if (ends == LinkEnds::kNpuCpu) {
    if (read) return {Gb(inter ? 147 : 151), Ns(inter ? 1700 : 1000), kTable1, kTable1};
    return {Gb(inter ? 107 : 110), Ns(inter ? 1900 : 1100), kTable1, kTable1};
  }
  LinkFigures figures =
      read ? LinkFigures{Gb(inter ? 164 : 167), Ns(inter ? 1900 : 1200), kTable1, kTable1}
           : LinkFigures{Gb(inter ? 135 : 137), Ns(inter ? 2100 : 1300), kTable1, kTable1};
  if (reach == Reach::kSamePackage) {
    figures.bytes_per_s = kCrossDie;
    figures.bandwidth_source = "CM 3.3.1";
    figures.latency_source = "assumed: at most intra-node of CM Table 1";
  }
  return figures;
}

LinkFigures Hardware(Plane plane, LinkEnds ends, Access access, Reach reach) {
  switch (plane) {
    case Plane::kUb:
      return Ub(ends, access, reach);
    case Plane::kRdma:
      return {Gbit(200), Ns(reach == Reach::kInterNode ? 5600 : 3600), "CM 3.3.1", kRoce};
    case Plane::kVpc:
      return {Gbit(400), std::chrono::microseconds(50), "CM 3.2", kNone};
    case Plane::kEvs:
      return {Gbit(400), std::chrono::microseconds(200), "CM 4.4.1, upper bound", kNone};
    case Plane::kObs:
      return {Gb(5) / 2, std::chrono::milliseconds(10), "CM Table 2", kNone};
  }
  EMS_CHECK(false, "plane {}", static_cast<int>(plane));
}

}  // namespace

std::string_view PlaneName(Plane plane) {
  constexpr std::array<std::string_view, kPlanes.size()> kNames = {"UB", "RDMA", "VPC", "EVS",
                                                                   "OBS"};
  return kNames.at(static_cast<size_t>(plane));
}

Duration TimeAt(uint64_t bytes, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return bytes == 0 ? Duration::zero() : Deadline::kMost;
  const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s);
  const auto most = static_cast<double>(Duration(Deadline::kMost).count());
  return Duration(static_cast<int64_t>(std::llround(std::min(ns, most))));
}

Duration LinkFigures::base_latency() const {
  return std::max(Duration::zero(), latency - TimeAt(kLatencyBytes, bytes_per_s));
}

Result<EmulatedLinkModel> EmulatedLinkModel::Create(double scale) {
  if (scale >= 1 / kScaleMax && scale <= kScaleMax) return EmulatedLinkModel(scale);
  return Error(StatusCode::kInvalidArgument, "link scale {}: 1e-6 to 1e6 times slower", scale);
}

LinkFigures EmulatedLinkModel::Scaled(LinkFigures figures) const {
  figures.bytes_per_s = std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(figures.bytes_per_s) / scale_));
  figures.latency = Duration(std::llround(static_cast<double>(figures.latency.count()) * scale_));
  return figures;
}

LinkFigures EmulatedLinkModel::Link(Plane plane, LinkEnds ends, Access access, Reach reach) const {
  return Scaled(Hardware(plane, ends, access, reach));
}

uint64_t EmulatedLinkModel::Cap(LinkCap cap) const {
  constexpr std::array kCaps = {Gb(1600),    // a die's HBM, CM §3.3.1
                                Gb(196),     // a die on UB, CM §3.3.1
                                Gb(160),     // a CPU on UB, CM §3.3.2
                                Gbit(200),   // a die on RDMA, CM §3.3.1
                                Gbit(400),   // a node: the Qingtian card, CM §3.2
                                Gb(5) / 2};  // the OBS bucket, CM §4.4.3, Table 2
  return Scaled({kCaps.at(static_cast<size_t>(cap)), {}, {}, {}}).bytes_per_s;
}

}  // namespace ems::fabric
