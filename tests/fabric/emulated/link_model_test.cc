// What must hold: the figures are those of the papers, one factor slows all of them down alike, and
// the time of a transfer follows from them.
#include "fabric/emulated/link_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ems::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

struct Row {
  LinkEnds ends;
  Access access;
  Reach reach;
  uint64_t gb_per_s;
  int64_t latency_ns;
};

TEST(LinkModelTest, UbIsTable1) {
  const EmulatedLinkModel model;
  for (const Row& row : {Row{LinkEnds::kNpuNpu, Access::kRead, Reach::kInterNode, 164, 1900},
                         Row{LinkEnds::kNpuNpu, Access::kRead, Reach::kIntraNode, 167, 1200},
                         Row{LinkEnds::kNpuNpu, Access::kWrite, Reach::kInterNode, 135, 2100},
                         Row{LinkEnds::kNpuNpu, Access::kWrite, Reach::kIntraNode, 137, 1300},
                         Row{LinkEnds::kNpuCpu, Access::kRead, Reach::kInterNode, 147, 1700},
                         Row{LinkEnds::kNpuCpu, Access::kRead, Reach::kIntraNode, 151, 1000},
                         Row{LinkEnds::kNpuCpu, Access::kWrite, Reach::kInterNode, 107, 1900},
                         Row{LinkEnds::kNpuCpu, Access::kWrite, Reach::kIntraNode, 110, 1100}}) {
    const LinkFigures link = model.Link(Plane::kUb, row.ends, row.access, row.reach);
    EXPECT_EQ(link.bytes_per_s, row.gb_per_s * 1'000'000'000);
    EXPECT_EQ(link.latency, nanoseconds(row.latency_ns));
    EXPECT_EQ(link.bandwidth_source, "CM Table 1");
    EXPECT_EQ(link.latency_source, "CM Table 1");
    EXPECT_NEAR(static_cast<double>(
                    (link.base_latency() + TimeAt(kLatencyBytes, link.bytes_per_s)).count()),
                static_cast<double>(row.latency_ns), 1);
  }
}

TEST(LinkModelTest, OtherPlanesHaveTheirBandwidths) {
  const EmulatedLinkModel model;
  const auto rate = [&](Plane plane) {
    return model.Link(plane, LinkEnds::kNpuNpu, Access::kRead, Reach::kInterNode).bytes_per_s;
  };
  EXPECT_EQ(rate(Plane::kRdma), 25'000'000'000U);
  EXPECT_EQ(rate(Plane::kVpc), 50'000'000'000U);
  EXPECT_EQ(rate(Plane::kEvs), 50'000'000'000U);
  EXPECT_EQ(rate(Plane::kObs), 2'500'000'000U);
  EXPECT_EQ(model.Cap(LinkCap::kDieUb), 196'000'000'000U);
  EXPECT_EQ(model.Cap(LinkCap::kCpuUb), 160'000'000'000U);
  EXPECT_EQ(model.Cap(LinkCap::kDieHbm), 1'600'000'000'000U);
}

TEST(LinkModelTest, EveryFigureNamesItsSource) {
  const EmulatedLinkModel model;
  for (const Plane plane : kPlanes) {
    EXPECT_NE(PlaneName(plane), "?");
    for (const Reach reach : {Reach::kSamePackage, Reach::kIntraNode, Reach::kInterNode}) {
      for (const LinkEnds ends : {LinkEnds::kNpuNpu, LinkEnds::kNpuCpu, LinkEnds::kCpuCpu}) {
        for (const Access access : {Access::kRead, Access::kWrite}) {
          const LinkFigures link = model.Link(plane, ends, access, reach);
          EXPECT_GT(link.bytes_per_s, 0U);
          EXPECT_GT(link.latency, Duration::zero());
          EXPECT_FALSE(link.bandwidth_source.empty());
          EXPECT_FALSE(link.latency_source.empty());
        }
      }
    }
  }
}

TEST(LinkModelTest, OneFactorSlowsEverythingDownAlike) {
  const EmulatedLinkModel fast;
  const auto slow = EmulatedLinkModel::Create(250);
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->scale(), 250);
  for (const Plane plane : kPlanes) {
    const auto at_full = fast.Link(plane, LinkEnds::kNpuCpu, Access::kRead, Reach::kInterNode);
    const auto scaled = slow->Link(plane, LinkEnds::kNpuCpu, Access::kRead, Reach::kInterNode);
    EXPECT_EQ(scaled.bytes_per_s * 250, at_full.bytes_per_s);
    EXPECT_EQ(scaled.latency, at_full.latency * 250);
    const auto base = static_cast<double>(at_full.base_latency().count());
    EXPECT_NEAR(static_cast<double>(scaled.base_latency().count()) / 250, base, 0.001 * base + 2);
  }
  EXPECT_EQ(slow->Cap(LinkCap::kNodeNic), 200'000'000U);
}

TEST(LinkModelTest, ScalesThatMakeNoSenseAreRefused) {
  for (const double scale : {0.0, -1.0, 1e7, 1e-9, std::nan("")})
    EXPECT_EQ(EmulatedLinkModel::Create(scale).status().code(), StatusCode::kInvalidArgument);
}

TEST(LinkModelTest, HugeTimesDoNotOverflow) {
  EXPECT_EQ(TimeAt(~uint64_t{0}, 1), Duration(Deadline::kMost));
  EXPECT_EQ(TimeAt(0, 0), Duration::zero());
  EXPECT_EQ(TimeAt(1000, 1'000'000'000), microseconds(1));
}

}  // namespace
}  // namespace ems::fabric
