// What must hold: the local bench runs against real daemons beside every peer that is installed,
// with every value verified; it reports and draws what it measured, never passes gates without
// proof, and leaves neither namespace nor process behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "bench/harness/commands.h"
#include "bench/sides/peer_server.h"
#include "tests/bench/harness/cluster_command.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

class LocalCommandTest : public ClusterCommandTest {
 protected:
  LocalCommandTest() : ClusterCommandTest("local") {}

  static std::string ReadFile(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(LocalCommandTest, QuickRunMeasuresEverySideAtEverySizeAndTidiesUp) {
  const size_t namespaces = NamespaceCount();
  const std::string json_path = cluster_->folder() + "/local.json";
  const ProgramOutput ran = Run({"--quick", "--json", json_path});
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  const auto json = nlohmann::json::parse(ReadFile(json_path), nullptr, false);
  ASSERT_TRUE(json.is_object());

  size_t peers = 0;
  for (const PeerKind kind : {PeerKind::kRedis, PeerKind::kMemcached}) {
    const bool installed = !FindPeerProgram(kind).empty();
    peers += installed ? 2 : 0;
    if (!installed) {
      EXPECT_THAT(ran.out, HasSubstr("is not installed"));
    }
  }
  constexpr size_t kSizes = 6, kThreads = 2, kEmsOps = 8, kOtherOps = 2;
  EXPECT_EQ(json["lanes"].size(), kSizes * kThreads * (kEmsOps + kOtherOps * (2 + peers)));
  for (const auto& trial : json["lanes"]) {
    EXPECT_GT(trial["ops_per_second"], 0) << trial;
    EXPECT_GT(trial["call_latency"]["count"], 0) << trial;
  }
  EXPECT_EQ(json["storms"].size(), kSizes);
  EXPECT_THAT(ran.out, HasSubstr("EMS keeps a checksum"));
  EXPECT_EQ(NamespaceCount(), namespaces);
}

TEST_F(LocalCommandTest, GatesOfAQuickRunArePrintedAndNeverPass) {
  const ProgramOutput ran = Run({"--quick", "--gate", "--peers", "none", "--rounds", "1"});
  EXPECT_EQ(ran.exit_code, 1);
  for (const char* text :
       {"gate view_4KiB_p50_us", "gate storm_server_cores", "gate get_1MiB_vs_copy",
        "gate put_1MiB_vs_peer nan >= 0.9 fail", "stated for a working set of 1 GiB"}) {
    EXPECT_THAT(ran.out, HasSubstr(text));
  }
}

TEST_F(LocalCommandTest, PoolThatIsTooSmallIsSaidBeforeAnythingIsMeasured) {
  const ProgramOutput ran = Run({"--working-set", "1GiB"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("dram.bytes"));
}

TEST_F(LocalCommandTest, ServerWithoutAUnixSocketIsRefusedByName) {
  const auto cluster = Cluster::Start(
      {.servers = 1, .controller_flags = {}, .server_flags = {"--set", "unix_path="}});
  ASSERT_TRUE(cluster.ok()) << ToString(cluster.status());
  const ProgramOutput ran = Run({"--quick"}, **cluster);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("server server-0 has no unix_path"));
}

TEST_F(LocalCommandTest, BadFlagsAreUsageErrors) {
  EXPECT_EQ(Run({"--sizes", "big"}).exit_code, 2);
  EXPECT_EQ(Run({"--sizes", "1GiB"}).exit_code, 2);
  EXPECT_EQ(Run({"--working-set", "1KiB"}).exit_code, 2);
  EXPECT_EQ(Run({"--peers", "mongo"}).exit_code, 2);
  EXPECT_EQ(Run({"--threads", "0"}).exit_code, 2);
  EXPECT_EQ(Run({"--help"}).exit_code, 0);
  const ProgramOutput plot = Run({"--plot", "local.svg"});
  EXPECT_EQ(plot.exit_code, 2);
  EXPECT_THAT(plot.out, HasSubstr("bench/plot.py"));
}

}  // namespace
}  // namespace ems::bench
