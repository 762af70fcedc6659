// What must hold: a failed gate or failure makes the command fail, the document says the same as
// the text, figures are right.
#include "bench/harness/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

std::string TempJson() {
  return ::testing::TempDir() + "report-" + std::to_string(getpid()) + ".json";
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

TEST(GateTest, LineNamesFigureBoundAndVerdict) {
  EXPECT_EQ((GateResult{"speed", 0.9, GateOp::kAtLeast, 0.85}).Line(),
            "gate speed 0.9 >= 0.85 pass");
  EXPECT_EQ((GateResult{"ratio", 1.6, GateOp::kAtMost, 1.5}).Line(), "gate ratio 1.6 <= 1.5 fail");
  EXPECT_TRUE((GateResult{"edge", 1.5, GateOp::kAtMost, 1.5}).passed());
}

TEST(GateTest, ValueThatIsNoNumberFailsEitherWay) {
  EXPECT_FALSE((GateResult{"nan", std::nan(""), GateOp::kAtLeast, 0}).passed());
  EXPECT_FALSE((GateResult{"nan", std::nan(""), GateOp::kAtMost, 0}).passed());
}

TEST(ReportTest, PassedGatesExitWithZeroAndAreInTheDocument) {
  Report report("test", TempJson(), GateSet::kAll);
  report.json()["answer"] = 42;
  ::testing::internal::CaptureStdout();
  report.AtLeast(kTimed, "speed", 2, 1);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "gate speed 2 >= 1 pass\n");
  EXPECT_EQ(report.Finish(), kExitOk);
  const nlohmann::json json = ReadJson(TempJson());
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["command"], "test");
  EXPECT_EQ(json["answer"], 42);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["gates"][0]["name"], "speed");
  EXPECT_EQ(json["gates"][0]["passed"], true);
}

TEST(ReportTest, OneFailedGateFailsTheCommand) {
  Report report("test", TempJson(), GateSet::kAll);
  report.Gate(GateKind::kTimed, "good", 2, GateOp::kAtLeast, 1);
  report.Gate(GateKind::kTimed, "bad", 0, GateOp::kAtLeast, 1);
  EXPECT_TRUE(report.failed());
  EXPECT_EQ(report.Finish(), kExitFailed);
  EXPECT_EQ(ReadJson(TempJson())["passed"], false);
}

TEST(ReportTest, GatesOfAKindThatWasNotAskedForAreNotChecked) {
  Report report("test", "", GateSet::kExact);
  ::testing::internal::CaptureStdout();
  report.Gate(GateKind::kTimed, "slow", 0, GateOp::kAtLeast, 1);
  report.AtMost(kExact, "count", uint64_t{1}, 1);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "gate count 1 <= 1 pass\n");
  EXPECT_EQ(report.json()["gates"].size(), 1U);
  EXPECT_EQ(report.json()["gates"][0]["kind"], "exact");
  EXPECT_EQ(report.Finish(), kExitOk);
  Report none("test", "");
  none.Gate(GateKind::kExact, "count", 0, GateOp::kAtLeast, 1);
  EXPECT_EQ(none.Finish(), kExitOk);
}

TEST(ReportTest, GatesThatWereAskedForAndNotCheckedFail) {
  Report report("test", "", GateSet::kExact);
  ::testing::internal::CaptureStderr();
  report.Gate(GateKind::kTimed, "slow", 2, GateOp::kAtLeast, 1);
  EXPECT_EQ(report.Finish(), kExitFailed);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--gate"));
}

TEST(ReportTest, ExpectationsAreCheckedWithoutAnyGate) {
  Report report("test", "");
  report.Expect("get_gbps", 1, GateOp::kAtLeast, 2);
  EXPECT_EQ(report.Finish(), kExitFailed);
}

TEST(ReportTest, WhatMustNotHappenFailsWithAnyGatesAndWithNone) {
  for (const GateSet gates : {GateSet::kNone, GateSet::kExact, GateSet::kAll}) {
    Report report("test", "", gates);
    report.MustBeZero("failed_calls", 0);
    EXPECT_EQ(report.Finish(), kExitOk);
    report.MustBeZero("failed_calls", 1);
    EXPECT_EQ(report.Finish(), kExitFailed);
  }
}

TEST(ReportTest, FailuresArePrintedUpToTheirBound) {
  Report report("test", "");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) report.Fail("it broke");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("ems-bench test: it broke\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_EQ(report.Finish(), kExitFailed);
}

TEST(ReportTest, DocumentThatCannotBeWrittenFailsTheCommand) {
  Report report("test", "/no/such/folder/report.json");
  EXPECT_EQ(report.Finish(), kExitFailed);
}

TEST(CpuMeterTest, CountsWorkBetweenStartAndStopOnly) {
  CpuMeter meter = CpuMeter::Make({getpid()}).value();
  const auto burn = [] {
    const Duration until = ProcessCpuTime() + std::chrono::milliseconds(30);
    while (ProcessCpuTime() < until) {
    }
  };
  burn();
  meter.Start();
  burn();
  meter.Stop();
  burn();
  EXPECT_GE(meter.client(), std::chrono::milliseconds(30));
  EXPECT_LT(meter.client(), std::chrono::milliseconds(60));
  EXPECT_GE(meter.servers(),
            std::chrono::milliseconds(10));  // this process again, in ticks of 10 ms
  EXPECT_GT(meter.SecondsPerGb(1'000'000'000), 0.03);
  EXPECT_EQ(meter.SecondsPerGb(0), 0);
  meter.Reset();
  EXPECT_EQ(meter.client(), Duration{0});
}

TEST(CpuMeterTest, UnknownProcessIsRefused) {
  const auto meter = CpuMeter::Make({0x7fffffff});
  EXPECT_EQ(meter.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
