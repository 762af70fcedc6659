// What must hold: every row is within its tolerance, or is known not to be, and then at most as far
// off as is written down; rows have names of their own; the gates can fail.
#include "bench/paper/paper_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/commands.h"
#include "bench/harness/report.h"
#include "tests/bench/harness/run_command.h"
#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandOutcome RunCommand(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "paper");
  return RunBench(AddPaperCommand, std::move(arguments));
}

TEST(PaperCommandTest, GatesPassAndEverythingIsWritten) {
  const ::ems::testing::TempPath json_file("paper.json");
  const CommandOutcome outcome = RunCommand({"--gate", "--json", json_file.path()});
  ASSERT_EQ(outcome.code, kExitOk) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("gate fig23_ub_vs_vpc_percent_off"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("NOT within")));
  std::ifstream file(json_file.path());
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_GT(json["rows"].size(), 80U);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["fig23"].size(), 6U) << "for bench/plot.py";
}

TEST(PaperCommandTest, EveryRowHasANameOfItsOwnAndAKind) {
  std::set<std::string> ids;
  size_t rows = 0, fits = 0, predictions = 0;
  for (const PaperSection& section : AllPaperSections({})) {
    for (const PaperRow& row : section.rows) {
      ids.insert(row.id);
      ++rows;
      fits += row.kind == RowKind::kFit ? 1 : 0;
      predictions += row.kind == RowKind::kPrediction ? 1 : 0;
      EXPECT_GT(row.known_percent > 0 ? row.known_percent : 1e9, row.tolerance_percent) << row.id;
    }
  }
  EXPECT_EQ(ids.size(), rows);
  EXPECT_GT(predictions, 2 * fits);
}

// A model without one of its effects has to be caught.
TEST(PaperCommandTest, RowsNoticeAnotherMachine) {
  const auto off = [](const pdc::CostConstants& constants) {
    size_t count = 0;
    for (const PaperSection& section : AllPaperSections(constants))
      for (const PaperRow& row : section.rows)
        count += row.within_tolerance() || row.known_percent > 0 ? 0 : 1;
    return count;
  };
  EXPECT_EQ(off({}), 0U);
  pdc::CostConstants constants;
  constants.hardware.hbm_gb_per_s /= 2;
  EXPECT_GT(off(constants), 5U);
  constants = {};
  constants.hardware.npu_npu_write.bytes_per_s *= 3;
  EXPECT_GT(off(constants), 0U);
  constants = {};
  constants.fitted.decode_barrier_factor = 1;
  EXPECT_GT(off(constants), 3U);
  constants = {};
  constants.hardware.vpc_node.bytes_per_s *= 2;
  EXPECT_GT(off(constants), 0U);
}

TEST(PaperCommandTest, ATraceThatIsNotThereIsAnError) {
  const ::ems::testing::TempPath none("none.jsonl");
  EXPECT_EQ(RunCommand({"--trace", none.path()}).code, kExitFailed);
}

TEST(PaperCommandTest, ServesATrace) {
  const ::ems::testing::TempPath trace("tiny.jsonl");
  const std::string& path = trace.path();
  std::ofstream(path)
      << R"({"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]})"
      << "\n"
      << R"({"timestamp": 9000, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 3]})"
      << "\n";
  const CommandOutcome outcome = RunCommand({"--trace", path, "--repeat", "2"});
  EXPECT_EQ(outcome.code, kExitOk) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("EMS over UB"));
  EXPECT_FALSE(RunCommand({"--repeat", "0"}).parsed);
}

}  // namespace
}  // namespace ems::bench
