// What must hold: the hot bench needs no cluster, reads right bytes from owner and copies, reports
// both sides, and refuses settings that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/paths.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "hot");
  return RunBench(AddHotCommand, std::move(arguments));
}

TEST(HotCommandTest, ReadersAreServedByCopiesWithTheRightBytes) {
  const ::ems::testing::TempPath json_file("hot.json");
  const std::string& path = json_file.path();
  const CommandOutcome outcome =
      RunCommand({"--quick", "--servers", "2", "--copies", "1", "--readers", "2", "--nic-mb-per-s",
                  "20", "--seconds", "1", "--json", path, "--programs", ems::testing::BinDir()});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text << outcome.errors;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  ASSERT_EQ(json["sides"].size(), 2U);
  EXPECT_EQ(json["sides"][0]["copy_reads"], 0);
  EXPECT_GT(json["sides"][1]["copy_reads"], 0);
}

TEST(HotCommandTest, RefusesSettingsThatMakeNoSense) {
  EXPECT_FALSE(RunCommand({"--readers", "0"}).parsed);
  EXPECT_EQ(RunCommand({"--servers", "3", "--copies", "3"}).code, kExitUsage);
}

}  // namespace
}  // namespace ems::bench
