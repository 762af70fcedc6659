// What must hold: transfers that pass the same part of the machine share it, others do not notice
// each other.
#include "fabric/emulated/emulated_fabric.h"

#include <gtest/gtest.h>

namespace ems::fabric {
namespace {

constexpr TimePoint kStart{std::chrono::seconds(100)};
const Endpoint kDie = Endpoint::Die(0, 0, 0);
const Endpoint kOther = Endpoint::Die(0, 0, 1);
const Endpoint kBucket = Endpoint::Obs();

const EmulatedPath* PathOf(EmulatedFabric* fabric, Plane plane, const Endpoint& a,
                           const Endpoint& b, Access access = Access::kRead) {
  const auto path = fabric->Path(plane, a, b, access);
  EXPECT_TRUE(path.ok()) << path.status();
  return path.ok() ? *path : nullptr;
}

TEST(EmulatedFabricTest, TheSameQuestionHasTheSamePath) {
  EmulatedFabric fabric{EmulatedTopology()};
  const auto* path = PathOf(&fabric, Plane::kUb, kDie, Endpoint::Cpu(1, 0));
  EXPECT_EQ(path, PathOf(&fabric, Plane::kUb, kDie, Endpoint::Cpu(1, 0)));
  EXPECT_NE(path, PathOf(&fabric, Plane::kUb, kDie, Endpoint::Cpu(1, 1)));
  EXPECT_EQ(fabric.Path(Plane::kRdma, kDie, Endpoint::Cpu(1, 0), Access::kRead).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(EmulatedFabricTest, AllNodesShareTheBucket) {
  EmulatedFabric fabric{EmulatedTopology()};
  constexpr uint64_t kBytes = 2'500'000'000;
  TimePoint last{};
  for (uint32_t node = 0; node < 8; ++node) {
    EmulatedTransfer load(PathOf(&fabric, Plane::kObs, Endpoint::Cpu(node, 0), kBucket), kStart);
    last = load.Add(kBytes);
  }
  EXPECT_EQ(last - kStart, std::chrono::seconds(8)) << "one second each, one after the other";
}

TEST(EmulatedFabricTest, VolumesOfNodesAddUp) {
  EmulatedFabric fabric{EmulatedTopology()};
  for (uint32_t node = 0; node < 48; ++node) {
    EmulatedTransfer load(PathOf(&fabric, Plane::kEvs, Endpoint::Cpu(node, 0), Endpoint::Evs(node)),
                          kStart);
    EXPECT_EQ(load.Add(50'000'000'000) - kStart, std::chrono::seconds(1)) << node;
  }
}

TEST(EmulatedFabricTest, DiesThatReadOneCpuShareItsPort) {
  EmulatedFabric fabric{EmulatedTopology()};
  const Endpoint cpu = Endpoint::Cpu(1, 0);
  EmulatedTransfer a(PathOf(&fabric, Plane::kUb, kDie, cpu), kStart);
  EmulatedTransfer b(PathOf(&fabric, Plane::kUb, kOther, cpu), kStart);
  for (int i = 0; i < 1600; ++i) {
    a.Add(1'000'000);
    b.Add(1'000'000);
  }
  EXPECT_NEAR(static_cast<double>((b.due() - kStart).count()), 20e6, 0.1e6)
      << "3.2 GB through 160 GB/s";
}

TEST(EmulatedFabricTest, DirectionsAreApart) {
  EmulatedFabric fabric{EmulatedTopology()};
  const Endpoint far = Endpoint::Die(5, 0, 0);
  EmulatedTransfer there(PathOf(&fabric, Plane::kRdma, kDie, far, Access::kWrite), kStart);
  EmulatedTransfer back(PathOf(&fabric, Plane::kRdma, kDie, far, Access::kRead), kStart);
  EXPECT_EQ(there.Add(25'000'000), back.Add(25'000'000));
}

}  // namespace
}  // namespace ems::fabric
