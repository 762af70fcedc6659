// What must hold: values that come back wrong or not at all fail the exact gates whatever the times
// are, and a figure that was not measured passes no gate.
#include "bench/store/store_gates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SectionResult Loaded() {
  SectionResult result;
  result.section = Section::kLoad;
  result.value_bytes = kMiB;
  result.expected_hits = result.hits = 10;
  return result;
}

std::string Judged(GateSet gates, const std::function<void(Report*)>& judge) {
  Report report("store", "", gates);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  judge(&report);
  ::testing::internal::GetCapturedStderr();
  return ::testing::internal::GetCapturedStdout();
}

std::string Counts(SectionResult result, bool verified) {
  std::vector<SectionResult> results;
  results.push_back(std::move(result));
  return Judged(GateSet::kExact, [&](Report* report) { JudgeCounts(results, verified, report); });
}

TEST(StoreGatesTest, WrongAndMissingValuesFail) {
  EXPECT_EQ(Counts(Loaded(), true),
            "gate wrong_values 0 <= 0 pass\ngate missing_values 0 <= 0 pass\n");
  SectionResult wrong = Loaded();
  wrong.wrong_bytes = 1;
  EXPECT_THAT(Counts(std::move(wrong), true), HasSubstr("gate wrong_values 1 <= 0 fail"));
  SectionResult missing = Loaded();
  missing.hits = 8;
  EXPECT_THAT(Counts(std::move(missing), true), HasSubstr("gate missing_values 2 <= 0 fail"));
  EXPECT_THAT(Counts(Loaded(), false), HasSubstr("gate wrong_values nan <= 0 fail"));
}

TEST(StoreGatesTest, WhatWasNotMeasuredPassesNoTimedGate) {
  const auto judge = [](Report* report) { JudgeGates({}, report); };
  EXPECT_THAT(Judged(GateSet::kAll, judge), HasSubstr("gate get_1MiB_vs_raw nan >= "));
  EXPECT_THAT(Judged(GateSet::kAll, judge), Not(HasSubstr("pass")));
  EXPECT_EQ(Judged(GateSet::kExact, judge), "");
}

TEST(StoreGatesTest, MultiExistsIsStatedForThreeServers) {
  const StoreBench::ExistsTimes times{.single_ms = 1, .multi_ms = 1, .found = kExistsKeys};
  const auto of = [&](size_t servers) {
    return Judged(GateSet::kAll, [&](Report* report) { JudgeExists(times, servers, report); });
  };
  EXPECT_THAT(of(3), HasSubstr("gate multi_exists_1000_keys_ms 1 <= 4 pass"));
  EXPECT_THAT(of(2), HasSubstr("gate multi_exists_1000_keys_ms nan <= 4 fail"));
}

}  // namespace
}  // namespace ems::bench
