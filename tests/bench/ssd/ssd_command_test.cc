// What must hold: the ssd bench needs no cluster, measures every series, writes what it measured,
// leaves nothing behind, and refuses settings that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ssd");
  return RunBench(AddSsdCommand, std::move(arguments));
}

TEST(SsdCommandTest, QuickRunMeasuresEveryLane) {
  const ::ems::testing::TempFolder folder;
  const ::ems::testing::TempPath json_file("ssd.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome = RunCommand(
      {"--quick", "--bytes", "32MiB", "--restart-objects", "2000", "--sizes", "64KiB,1MiB",
       "--only", "write,read,restart", "--folder", folder.path(), "--json", path});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["lanes"].size(), 6U);
  for (const auto& series : json["lanes"]) {
    EXPECT_THAT(outcome.text, HasSubstr(series["name"].get<std::string>()));
    EXPECT_GT(series["ems"][0]["gb_per_second"], 0);
  }
  ASSERT_EQ(json["restarts"].size(), 2U);
  EXPECT_EQ(json["restarts"][1]["objects"], 2000);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SsdCommandTest, GatesPrintTheirLines) {
  const CommandOutcome outcome =
      RunCommand({"--quick", "--gate", "--only", "write", "--bytes", "16MiB", "--sizes", "64KiB"});
  EXPECT_THAT(outcome.text, HasSubstr("gate write_64KiB_vs_fio "));
  EXPECT_THAT(outcome.text, HasSubstr("gate write_64KiB_full_vs_fio "));
  EXPECT_THAT(outcome.text, HasSubstr("gate write_amplification "));
  EXPECT_THAT(outcome.text, HasSubstr("gate disk_bytes_max_vs_capacity "));
  EXPECT_THAT(outcome.text, ::testing::Not(HasSubstr("restart")));
}

TEST(SsdCommandTest, TooLittleSpaceIsSaidBeforeAnythingIsWritten) {
  const CommandOutcome outcome = RunCommand({"--bytes", "1000000TB", "--only", "write"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.errors, HasSubstr("free, the run needs"));
}

TEST(SsdCommandTest, RefusesFlagsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--only", "everything"}).parsed);
  EXPECT_FALSE(RunCommand({"--rounds", "0"}).parsed);
  EXPECT_FALSE(RunCommand({"--depths", "65"}).parsed);
  for (const auto& flags : std::vector<std::vector<std::string>>{{"--bytes", "much"},
                                                                 {"--bytes", "1MiB"},
                                                                 {"--sizes", "1000"},
                                                                 {"--sizes", "8MiB"},
                                                                 {"--folder", "/no/such/folder"}}) {
    const CommandOutcome outcome = RunCommand(flags);
    EXPECT_EQ(outcome.code, kExitUsage) << flags.back();
    EXPECT_THAT(outcome.errors, HasSubstr("ems-bench ssd: "));
  }
}

}  // namespace
}  // namespace ems::bench
