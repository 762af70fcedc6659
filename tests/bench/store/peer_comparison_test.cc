// What must hold: the comparison runs against real daemons beside each peer that is installed, with
// as many serving threads on each side, every value verified; a cluster of several servers is
// refused; gates never pass without proof.
#include "bench/store/peer_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/sides/peer_server.h"
#include "tests/support/cluster.h"
#include "tests/support/daemon.h"

namespace ems::bench {
namespace {

using ems::testing::Cluster;
using ems::testing::ProgramOutput;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr Duration kBenchTimeout = std::chrono::seconds(50);

ProgramOutput Compare(const Cluster& cluster, std::vector<std::string> flags) {
  flags.insert(flags.begin(),
               {"store", "--peers", "--quick", "--controller", cluster.controller_address()});
  const auto ran = ems::testing::RunProgram("ems-bench", flags, kBenchTimeout);
  EXPECT_TRUE(ran.ok()) << ToString(ran.status());
  return ran.value_or(ProgramOutput{.exit_code = -1, .out = {}});
}

std::unique_ptr<Cluster> Started(int servers) {
  auto started = Cluster::Start({.servers = servers,
                                 .controller_flags = {},
                                 .server_flags = {"--set", "network.io_threads=3"}});
  EXPECT_TRUE(started.ok()) << ToString(started.status());
  return started.ok() ? *std::move(started) : nullptr;
}

TEST(PeerComparisonTest, EverySideIsMeasuredWithEachNumberOfCallers) {
  const auto cluster = Started(1);
  ASSERT_NE(cluster, nullptr);
  const std::string path = cluster->folder() + "/peers.json";
  const ProgramOutput ran =
      Compare(*cluster, {"--sizes", "4KiB,1MiB", "--threads", "1,3", "--json", path});
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  size_t sides = 1;
  for (const PeerKind kind : {PeerKind::kRedis, PeerKind::kMemcached})
    sides += FindPeerProgram(kind).empty() ? 0 : 1;
  EXPECT_THAT(ran.out, HasSubstr("EMS 3 (network.io_threads), memcached -t 3"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  for (const char* op : {"get", "put"}) {
    ASSERT_EQ(json[op].size(), 2 * 2 * sides) << op;
    for (const auto& row : json[op]) EXPECT_GT(row["ops_per_second"], 0) << row;
  }
  EXPECT_EQ(json["missing"].size(), 3 - sides);
}

TEST(PeerComparisonTest, SeveralServersAreNoFairSide) {
  const auto cluster = Started(2);
  ASSERT_NE(cluster, nullptr);
  const ProgramOutput ran = Compare(*cluster, {});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("this cluster has 2"));
}

TEST(PeerComparisonTest, GatesNeedAllSizesAndAPlanHasItsOwnDefaults) {
  ClusterFlags flags;
  const PeerPlan plain = MakePeerPlan(flags, {}, 0, {1});
  EXPECT_THAT(plain.sizes, ElementsAre(4 * kKiB, 64 * kKiB, kMiB, 9 * kMiB));
  EXPECT_EQ(plain.settings.rounds, 5U);
  EXPECT_THAT(MakePeerPlan(flags, {5}, 3, {1}).sizes, ElementsAre(5));
  flags.gates.word = "all";
  EXPECT_THAT(MakePeerPlan(flags, {5, kMiB}, 3, {1}).sizes,
              ElementsAre(5, kMiB, 4 * kKiB, 64 * kKiB, 9 * kMiB));
}

}  // namespace
}  // namespace ems::bench
