// What must hold: the default is a CloudMatrix384, each route names the parts of the machine that
// the bytes pass, and planes join what they join and nothing else.
#include "fabric/emulated/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace ems::fabric {
namespace {

using Kind = LinkId::Kind;
using ::testing::ElementsAre;

const Endpoint kDie = Endpoint::Die(3, 1, 0);
const Endpoint kSibling = Endpoint::Die(3, 1, 1);
const Endpoint kNeighbour = Endpoint::Die(3, 2, 0);
const Endpoint kFarDie = Endpoint::Die(40, 7, 1);
const Endpoint kCpu = Endpoint::Cpu(3, 2);
const Endpoint kFarCpu = Endpoint::Cpu(9, 0);

EmulatedRoute RouteOf(Plane plane, const Endpoint& initiator, const Endpoint& target,
                      Access access) {
  const auto route = EmulatedTopology().Route(plane, initiator, target, access);
  EXPECT_TRUE(route.ok()) << route.status();
  return route.ok() ? *route : EmulatedRoute{};
}

std::vector<std::pair<Kind, Endpoint>> Parts(const EmulatedRoute& route) {
  std::vector<std::pair<Kind, Endpoint>> parts;
  for (const RouteLink& link : route.links) parts.emplace_back(link.id.kind, link.id.at);
  return parts;
}

double GbPerS(const EmulatedRoute& route) { return static_cast<double>(route.bytes_per_s()) / 1e9; }

TEST(TopologyTest, TheDefaultIsACloudMatrix384) {
  const EmulatedTopology topology;
  EXPECT_EQ(topology.npus(), 384U);
  EXPECT_EQ(topology.dies(), 768U);
  EXPECT_EQ(topology.cpus(), 192U);
  std::set<Endpoint> all;
  for (uint64_t i = 0; i < topology.dies(); ++i) all.insert(topology.DieAt(i));
  EXPECT_EQ(all.size(), 768U);
  EXPECT_EQ(topology.DieAt(17), Endpoint::Die(1, 0, 1));
}

TEST(TopologyTest, UbPassesTheDieAndBothPorts) {
  const auto read = RouteOf(Plane::kUb, kDie, kFarCpu, Access::kRead);
  EXPECT_THAT(Parts(read),
              ElementsAre(std::pair(Kind::kEngine, kDie), std::pair(Kind::kUbOut, kFarCpu),
                          std::pair(Kind::kUbIn, kDie)));
  EXPECT_EQ(GbPerS(read), 147);
  EXPECT_EQ(read.base_latency + TimeAt(512, read.bytes_per_s()), std::chrono::nanoseconds(1700));
  const auto write = RouteOf(Plane::kUb, kDie, kCpu, Access::kWrite);
  EXPECT_THAT(Parts(write),
              ElementsAre(std::pair(Kind::kEngine, kDie), std::pair(Kind::kUbOut, kDie),
                          std::pair(Kind::kUbIn, kCpu)));
  EXPECT_EQ(GbPerS(write), 110) << "within a node";
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kDie, kFarDie, Access::kRead)), 164);
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kDie, kNeighbour, Access::kWrite)), 137);
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kDie, kSibling, Access::kWrite)), 270) << "one package";
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kCpu, kFarCpu, Access::kRead)), 160);
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kCpu, kFarDie, Access::kRead)), 147)
      << "the NPU's side is what was measured";
  EXPECT_EQ(GbPerS(RouteOf(Plane::kUb, kDie, kDie, Access::kRead)), 1600) << "its own HBM";
}

TEST(TopologyTest, RdmaJoinsDiesAlone) {
  const auto write = RouteOf(Plane::kRdma, kDie, kFarDie, Access::kWrite);
  EXPECT_THAT(Parts(write),
              ElementsAre(std::pair(Kind::kRdmaOut, kDie), std::pair(Kind::kRdmaIn, kFarDie)));
  EXPECT_EQ(GbPerS(write), 25);
  EXPECT_FALSE(EmulatedTopology().Route(Plane::kRdma, kDie, kCpu, Access::kRead).ok());
}

TEST(TopologyTest, VpcAndStoragePassTheCardOfTheNode) {
  const Endpoint card = Endpoint::Cpu(3, 0), far_card = Endpoint::Cpu(9, 0);
  const auto vpc = RouteOf(Plane::kVpc, kDie, kFarCpu, Access::kRead);
  EXPECT_THAT(Parts(vpc),
              ElementsAre(std::pair(Kind::kNicOut, far_card), std::pair(Kind::kNicIn, card)));
  EXPECT_EQ(GbPerS(vpc), 50);
  const auto evs = RouteOf(Plane::kEvs, kCpu, Endpoint::Evs(3), Access::kWrite);
  EXPECT_THAT(Parts(evs), ElementsAre(std::pair(Kind::kNicOut, card)));
  const auto obs = RouteOf(Plane::kObs, kDie, Endpoint::Obs(), Access::kRead);
  EXPECT_THAT(Parts(obs), ElementsAre(std::pair(Kind::kBucket, Endpoint::Obs()),
                                      std::pair(Kind::kNicIn, card)));
  EXPECT_EQ(GbPerS(obs), 2.5);
}

TEST(TopologyTest, WhatAPlaneDoesNotJoinIsRefused) {
  const EmulatedTopology topology;
  const auto refused = [&](Plane plane, const Endpoint& a, const Endpoint& b) {
    return topology.Route(plane, a, b, Access::kRead).status().code() ==
           StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Plane::kUb, kDie, Endpoint::Obs()));
  EXPECT_TRUE(refused(Plane::kUb, Endpoint::Obs(), kDie));
  EXPECT_TRUE(refused(Plane::kObs, kDie, kCpu));
  EXPECT_TRUE(refused(Plane::kEvs, kDie, Endpoint::Evs(4))) << "another node's volume";
  EXPECT_TRUE(refused(Plane::kUb, kDie, Endpoint::Die(48, 0, 0)));
  EXPECT_TRUE(refused(Plane::kUb, kDie, Endpoint::Die(0, 8, 0)));
  EXPECT_TRUE(refused(Plane::kUb, kDie, Endpoint::Die(0, 0, 2)));
  EXPECT_TRUE(refused(Plane::kUb, kDie, Endpoint::Cpu(0, 4)));
  EXPECT_TRUE(refused(Plane::kUb, kCpu, kCpu));
}

TEST(TopologyTest, SmallMachinesAndSlowOnesAreMade) {
  const auto model = EmulatedLinkModel::Create(100);
  const auto small = EmulatedTopology::Create(EmulatedTopology::kSmall, *model);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->dies(), 8U);
  const auto route =
      small->Route(Plane::kUb, Endpoint::Die(0, 0, 0), Endpoint::Cpu(1, 0), Access::kRead);
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->bytes_per_s(), 1'470'000'000U);
  EXPECT_EQ(EmulatedTopology::Create({.nodes = 0}, *model).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(EmulatedTopology::Create({.npus_per_node = 1'000'000}, *model).ok());
}

}  // namespace
}  // namespace ems::fabric
