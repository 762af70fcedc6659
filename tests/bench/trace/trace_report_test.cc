#include "bench/trace/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

// A replay in which all went well.
struct Good {
  Good() {
    trace.unique_blocks = 500;
    figures.trace = &trace;
    figures.capacity_bytes = 1 << 20;
    ReplayTotals& totals = figures.replay.totals;
    totals.requests = 10;
    totals.blocks = 1000, totals.tokens = 500'000;
    totals.hit_blocks = totals.arrived_blocks = 300;
    totals.hit_tokens = totals.arrived_tokens = 150'000;
    totals.ideal_blocks = 304, totals.ideal_tokens = 152'000;
    totals.calls = 30;
    figures.servers = {{"s1", true, 100}, {"s2", true, 104}, {"s3", true, 96}};
    figures.placement = {{"s1", 1000, 100}, {"s2", 1000, 103}, {"s3", 1000, 97}};
  }
  // The exit code; what was printed goes to `text`.
  int Finish(const TraceExpectations& expect, GateSet gates = GateSet::kNone) {
    Report report("trace", "", gates);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    ReportTrace(figures, expect, &report);
    const int code = report.Finish();
    text = ::testing::internal::GetCapturedStdout();
    errors = ::testing::internal::GetCapturedStderr();
    json = report.json();
    return code;
  }
  Trace trace;
  TraceFigures figures;
  nlohmann::ordered_json json;
  std::string text, errors;
};

TEST(TraceReportTest, PassesItsGatesWhenAllIsWell) {
  Good good;
  EXPECT_EQ(good.Finish({}, GateSet::kAll), kExitOk) << good.text;
  EXPECT_THAT(good.text, HasSubstr("gate hit_rate_vs_ideal_lru_points 0.4 <= 0.5 pass"));
  EXPECT_THAT(good.text, HasSubstr("gate wrong_bytes 0 <= 0 pass"));
  EXPECT_THAT(good.text, HasSubstr("gate placement_above_share_percent 3 <= 4 pass"));
  EXPECT_THAT(good.text, HasSubstr("gate calls_above_deadline 0 <= 0 pass"));
}

TEST(TraceReportTest, FailsTheGateOfEachFigureThatIsOut) {
  const auto check = [](auto change, const std::string& line) {
    Good bad;
    change(&bad.figures);
    EXPECT_EQ(bad.Finish({}, GateSet::kAll), kExitFailed) << line;
    EXPECT_THAT(bad.text, HasSubstr(line));
  };
  check([](TraceFigures* f) { f->replay.totals.ideal_blocks = 310; },
        "gate hit_rate_vs_ideal_lru_points 1 <= 0.5 fail");
  check([](TraceFigures* f) { f->replay.totals.arrived_blocks = 290; },
        "gate hit_rate_vs_ideal_lru_points 1.4 <= 0.5 fail");
  check([](TraceFigures* f) { f->replay.totals.wrong_bytes = 1; }, "gate wrong_bytes 1 <= 0 fail");
  check([](TraceFigures* f) { f->settings.verify = false; }, "gate wrong_bytes nan <= 0 fail");
  check([](TraceFigures* f) { f->placement[0].bytes = 130; },
        "gate placement_above_share_percent 18.18 <= 4 fail");
  check([](TraceFigures* f) { f->placement.clear(); },
        "gate placement_above_share_percent nan <= 4 fail");
  check([](TraceFigures* f) { f->replay.totals.late_calls = 2; },
        "gate calls_above_deadline 2 <= 0 fail");
}

TEST(TraceReportTest, CallsThatFailedFailTheRunUnlessTheyAreExpectedTo) {
  Good bad;
  bad.figures.replay.totals.errors["save OUT_OF_RANGE"] = 2;
  EXPECT_EQ(bad.Finish({}), kExitFailed);
  EXPECT_THAT(bad.errors, HasSubstr("save OUT_OF_RANGE: 2 blocks; raise the capacity"));
  EXPECT_EQ(bad.Finish({.errors = true}), kExitOk) << bad.errors;
  Good evicted;
  evicted.figures.replay.totals.errors["load NOT_FOUND"] = 2;
  EXPECT_EQ(evicted.Finish({}), kExitOk) << evicted.errors;
}

TEST(TraceReportTest, ExactGatesLeaveOutWhatDependsOnTime) {
  Good late;
  late.figures.replay.totals.late_calls = 2;
  EXPECT_EQ(late.Finish({}, GateSet::kExact), kExitOk) << late.text;
  EXPECT_THAT(late.text, HasSubstr("gate wrong_bytes 0 <= 0 pass"));
  EXPECT_THAT(late.text, ::testing::Not(HasSubstr("calls_above_deadline ")));
}

TEST(TraceReportTest, AWrongByteFailsWithoutAnyGate) {
  Good bad;
  bad.figures.replay.totals.wrong_bytes = 8;
  EXPECT_EQ(bad.Finish({}), kExitFailed);
  Good good;
  EXPECT_EQ(good.Finish({}), kExitOk);
}

TEST(TraceReportTest, ExpectationsAreGates) {
  Good good;
  EXPECT_EQ(good.Finish({.hit_rate_percent = 30, .hit_delta_points = 0.4001}), kExitOk);
  Good low;
  EXPECT_EQ(low.Finish({.hit_rate_percent = 30.1}), kExitFailed);
  EXPECT_THAT(low.text, HasSubstr("gate hit_rate_percent 30 >= 30.1 fail"));
  Good far;
  EXPECT_EQ(far.Finish({.hit_delta_points = 0.3}), kExitFailed);
}

TEST(TraceReportTest, AnInterruptedReplayFails) {
  Good bad;
  bad.figures.replay.totals.interrupted = true;
  EXPECT_EQ(bad.Finish({}), kExitFailed);
}

TEST(TraceReportTest, JsonAndTextHoldTheFigures) {
  Good good;
  good.figures.replay.totals.errors["load UNAVAILABLE"] = 7;
  good.figures.servers[1].live = false;
  good.Finish({});
  EXPECT_THAT(good.text, HasSubstr("load UNAVAILABLE: 7"));
  EXPECT_THAT(good.text, HasSubstr("30.40 %"));
  EXPECT_THAT(good.text, HasSubstr("down"));
  const auto& json = good.json;
  EXPECT_NEAR(json["hit_rate"]["lookup_blocks_percent"].get<double>(), 30, 1e-9);
  EXPECT_EQ(json["errors"]["load UNAVAILABLE"], 7);
  EXPECT_EQ(json["servers"].size(), 3u);
  EXPECT_EQ(json["wrong_bytes"], 0);
}

TEST(TraceReportTest, MarksShowTheShareDone) {
  ReplayTotals totals;
  totals.requests = 5;
  totals.blocks = 10, totals.hit_blocks = 4, totals.ideal_blocks = 5;
  EXPECT_THAT(MarkLine(totals, 50), HasSubstr("  10 %"));
  EXPECT_THAT(MarkLine(totals, 50), HasSubstr("40.00 %"));
  EXPECT_THAT(MarkLine(totals, 50), HasSubstr("50.00 %"));
}

}  // namespace
}  // namespace ems::bench
