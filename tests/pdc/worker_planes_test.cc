// What must hold: each rank has its die, its paths pass that die's parts of the machine, and KV
// comes from the rank that PdMapping names.
#include "pdc/worker_planes.h"

#include <gtest/gtest.h>

#include <map>

namespace ems::pdc {
namespace {

using fabric::EmulatedFabric;
using fabric::EmulatedLinkModel;
using fabric::EmulatedTopology;
using fabric::EmulatedTransfer;
using fabric::Endpoint;
using fabric::Plane;
using Kind = fabric::LinkId::Kind;

// 8 dies: 4 a node.
EmulatedTopology Small() {
  return *EmulatedTopology::Create(EmulatedTopology::kSmall, EmulatedLinkModel());
}
WorkerPlacement TwoToFour() {
  return {.shape = {.prefill_tp = 2, .decode_tp = 1, .decode_dp = 4},
          .prefill_die = 1,
          .decode_die = 4,
          .pool = Endpoint::Cpu(1, 0)};
}
uint64_t Carry(const fabric::EmulatedPath* path, uint64_t bytes) {
  EmulatedTransfer(path, TimePoint()).Add(bytes);
  return bytes;
}

class WorkerPlanesTest : public ::testing::Test {
 protected:
  EmulatedFabric fabric_{Small()};
};

TEST_F(WorkerPlanesTest, RanksFollowEachOtherDieByDie) {
  const auto planes = WorkerPlanes::Make(&fabric_, TwoToFour());
  ASSERT_TRUE(planes.ok()) << planes.status();
  EXPECT_EQ(planes->PrefillDie(0), Endpoint::Die(0, 0, 1));
  EXPECT_EQ(planes->PrefillDie(1), Endpoint::Die(0, 1, 0));
  EXPECT_EQ(planes->DecodeDie({.dp = 3}), Endpoint::Die(1, 1, 1));
  const auto groups = WorkerPlanes::Make(
      &fabric_, {.shape = {.prefill_tp = 4, .decode_tp = 2, .decode_dp = 2}, .decode_die = 4});
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->DecodeDie({.dp = 1, .tp = 0}), Endpoint::Die(1, 1, 0));
  EXPECT_EQ(groups->DecodeDie({.dp = 1, .tp = 1}), Endpoint::Die(1, 1, 1));
}

TEST_F(WorkerPlanesTest, ThePoolIsReadAndWrittenByTheDie) {
  const auto planes = *WorkerPlanes::Make(&fabric_, TwoToFour());
  const Endpoint die = planes.PrefillDie(1), pool = Endpoint::Cpu(1, 0);
  const auto ub = planes.PoolOf(die, Plane::kUb);
  ASSERT_TRUE(ub.ok()) << ub.status();
  EXPECT_EQ(ub->read->bytes_per_s(), 147'000'000'000U);
  EXPECT_EQ(ub->write->bytes_per_s(), 107'000'000'000U);
  Carry(ub->read, 1000);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kUbOut, pool, 0}), 1000U);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kUbIn, die, 0}), 1000U);
  Carry(ub->write, 70);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kUbOut, die, 0}), 70U);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kUbIn, pool, 0}), 70U);
}

TEST_F(WorkerPlanesTest, OverVpcItIsTheNodesCards) {
  const auto planes = *WorkerPlanes::Make(&fabric_, TwoToFour());
  const auto vpc = planes.PoolOf(planes.PrefillDie(0), Plane::kVpc);
  ASSERT_TRUE(vpc.ok()) << vpc.status();
  EXPECT_EQ(vpc->read->bytes_per_s(), 50'000'000'000U);
  Carry(vpc->read, 1000);
  Carry(vpc->write, 70);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kNicOut, Endpoint::Cpu(1, 0), 0}), 1000U);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kNicIn, Endpoint::Cpu(1, 0), 0}), 70U);
  EXPECT_EQ(fabric_.BytesCarried({Kind::kNicIn, Endpoint::Cpu(0, 0), 0}), 1000U);
}

TEST_F(WorkerPlanesTest, NoOtherPlaneLeadsToThePool) {
  const auto planes = *WorkerPlanes::Make(&fabric_, TwoToFour());
  for (const Plane plane : {Plane::kRdma, Plane::kEvs, Plane::kObs}) {
    EXPECT_EQ(planes.PoolOf(planes.PrefillDie(0), plane).status().code(),
              StatusCode::kInvalidArgument)
        << fabric::PlaneName(plane);
  }
  EXPECT_EQ(planes.PoolOf(Endpoint::Cpu(0, 0), Plane::kUb).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(planes.PoolOf(Endpoint::Die(9, 0, 0), Plane::kUb).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(WorkerPlanesTest, KvComesFromThePrefillRankOfTheMapping) {
  const auto planes = *WorkerPlanes::Make(&fabric_, TwoToFour());
  std::map<int, uint64_t> sent;
  for (int dp = 0; dp < 4; ++dp) {
    const auto path = planes.HandoffTo({.dp = dp});
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ((*path)->bytes_per_s(), 25'000'000'000U);
    const uint64_t bytes = uint64_t{1} << dp;
    sent[planes.mapping().PrefillRank({.dp = dp})] += Carry(*path, bytes);
    EXPECT_EQ(fabric_.BytesCarried({Kind::kRdmaIn, planes.DecodeDie({.dp = dp}), 0}), bytes);
  }
  ASSERT_EQ(sent.size(), 2U);
  for (const auto& [rank, bytes] : sent)
    EXPECT_EQ(fabric_.BytesCarried({Kind::kRdmaOut, planes.PrefillDie(rank), 0}), bytes) << rank;
  EXPECT_EQ(sent[0], 3U) << "dp 0 and 1";
}

TEST_F(WorkerPlanesTest, WhatDoesNotFitIsRefused) {
  const auto code = [this](WorkerPlacement placement) {
    return WorkerPlanes::Make(&fabric_, placement).status().code();
  };
  EXPECT_EQ(code(TwoToFour()), StatusCode::kOk);
  WorkerPlacement placement = TwoToFour();
  placement.shape.decode_dp = 3;
  EXPECT_EQ(code(placement), StatusCode::kInvalidArgument) << "no shape of PdMapping";
  placement = TwoToFour();
  placement.decode_die = 5;
  EXPECT_EQ(code(placement), StatusCode::kInvalidArgument) << "beyond the last die";
  placement = TwoToFour();
  placement.prefill_die = 8;
  EXPECT_EQ(code(placement), StatusCode::kInvalidArgument);
  for (const uint64_t die : {uint64_t{3}, uint64_t{4}, uint64_t{7}}) {
    placement = TwoToFour();
    placement.prefill_die = die;
    EXPECT_EQ(code(placement), StatusCode::kInvalidArgument) << "die of both: " << die;
  }
  placement = TwoToFour();
  placement.pool = Endpoint::Cpu(2, 0);
  EXPECT_EQ(code(placement), StatusCode::kInvalidArgument) << "no such node";
  placement.pool = Endpoint::Evs(0);
  EXPECT_EQ(code(placement), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
