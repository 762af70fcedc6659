// What must hold: the store bench runs against real daemons with every value verified, reports what
// it measured, and leaves no namespace behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/harness/commands.h"
#include "tests/bench/harness/cluster_command.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

class StoreCommandTest : public ClusterCommandTest {
 protected:
  StoreCommandTest() : ClusterCommandTest("store") {}
};

TEST_F(StoreCommandTest, AWordThatIsNoCommandOrNoAddressIsNamed) {
  const auto unknown = testing::RunProgram("ems-bench", {"stor"}, kBenchTimeout);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(unknown->exit_code, 2);
  EXPECT_THAT(unknown->out, HasSubstr("ems-bench: there is no command \"stor\" (did you mean "
                                      "\"store\"?)"));
  const auto ran =
      testing::RunProgram("ems-bench", {"store", "--quick", "--controller", "localhost"});
  ASSERT_TRUE(ran.ok()) << ran.status();
  EXPECT_EQ(ran->exit_code, 1);
  EXPECT_THAT(ran->out, HasSubstr("the port is missing, write localhost:PORT"));
}

TEST_F(StoreCommandTest, QuickRunMeasuresAllSectionsVerifiedAndTidiesUp) {
  const size_t namespaces = NamespaceCount();
  const std::string path = cluster_->folder() + "/store.json";
  const ProgramOutput ran = Run({"--quick", "--json", path});
  ASSERT_EQ(ran.exit_code, 0) << ran.out;
  for (const char* section : {"Store\n", "Lookup\n", "Load\n"})
    EXPECT_THAT(ran.out, HasSubstr(section));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["results"].size(), 9U);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["keys_succeeded"], result["keys_attempted"]);
    EXPECT_EQ(result["wrong_bytes"], 0);
    EXPECT_GT(result["call_latency"]["p50_ms"], 0);
    EXPECT_EQ(result.contains("raw"), result["section"] != "Lookup");
  }
  EXPECT_EQ(NamespaceCount(), namespaces);
}

TEST_F(StoreCommandTest, BatchesAndThreadsOverEachTransport) {
  for (const char* transport : {"tcp", "unix"}) {
    const ProgramOutput ran = Run({"--quick", "--sizes", "1,4KiB", "--batch", "3", "--threads", "2",
                                   "--transport", transport});
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
  }
}

TEST_F(StoreCommandTest, UnreachableExpectationFailsWithItsGateLine) {
  const ProgramOutput ran =
      Run({"--quick", "--sizes", "4KiB", "--only", "load", "--expect-get-gbps", "1e6"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("gate get_gbps"));
  EXPECT_THAT(ran.out, HasSubstr("fail"));
}

TEST_F(StoreCommandTest, BadFlagsAreUsageErrors) {
  EXPECT_EQ(Run({"--sizes", "big"}).exit_code, 2);
  EXPECT_EQ(Run({"--sizes", "1GiB", "--keys", "1000"}).exit_code, 2);
  EXPECT_EQ(Run({"--gate", "--threads", "4"}).exit_code, 2);
  EXPECT_EQ(Run({"--only", "dance"}).exit_code, 2);
  EXPECT_EQ(Run({"--threads", "1,2"}).exit_code, 2);
  EXPECT_EQ(Run({"--peers", "--transport", "unix"}).exit_code, 2);
  EXPECT_EQ(Run({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace ems::bench
