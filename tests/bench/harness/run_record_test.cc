// What must hold: text and document say the machine, the kernel, the build, the date and the load.
#include "bench/harness/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/harness/report.h"

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(RunRecordTest, KnowsThisMachineAndThisBuild) {
  const RunRecord record = RunRecord::Begin();
  EXPECT_FALSE(record.cpu.empty());
  EXPECT_GE(record.cores, 1);
  EXPECT_GT(record.memory_bytes, uint64_t{1} << 27);
  EXPECT_THAT(record.kernel, HasSubstr("Linux "));
  EXPECT_THAT(record.version, MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(record.commit, MatchesRegex("[0-9a-f]*"));
  EXPECT_GE(record.load_before, 0);
}

TEST(RunRecordTest, TextAndDocumentSayTheSame) {
  RunRecord record{.cpu = "CPU X",
                   .cores = 2,
                   .memory_bytes = uint64_t{8} << 30,
                   .kernel = "Linux 6.1 x86_64",
                   .version = "1.2.3",
                   .commit = "abc123",
                   .begun = 86'400,
                   .load_before = 0.25,
                   .load_after = 1.5};
  EXPECT_EQ(record.Text(),
            "CPU X, 2 cores, 8 GiB; Linux 6.1 x86_64\n"
            "EMS 1.2.3 (abc123); 1970-01-02T00:00:00Z; load average 0.25 before, 1.50 after\n");
  const auto json = record.ToJson();
  EXPECT_EQ(json["cpu"], "CPU X");
  EXPECT_EQ(json["memory_bytes"], uint64_t{8} << 30);
  EXPECT_EQ(json["date"], "1970-01-02T00:00:00Z");
  EXPECT_EQ(json["load_after"], 1.5);
  record.commit.clear();
  EXPECT_THAT(record.Text(), HasSubstr("EMS 1.2.3; "));
}

TEST(RunRecordTest, EveryReportEndsWithIt) {
  Report report("test", "");
  ::testing::internal::CaptureStdout();
  report.Finish();
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("load average"));
  EXPECT_GE(report.json()["run"]["cores"], 1);
}

}  // namespace
}  // namespace ems::bench
