// What must hold: hits are compared with the undisturbed run less what earlier losses cost, with
// the ideal where blocks are lost; failed Gets and what moved too much fail.
#include "bench/elastic/elastic_report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace ems::bench {
namespace {

// All is well in it.
ChangeFigures GoodChange() {
  ChangeFigures f;
  f.name = "join";
  f.hit_percent = 40;
  f.undisturbed_percent = 41;
  f.ideal_percent = f.ideal_whole_percent = 42;
  f.sums.gets.Record(std::chrono::milliseconds(1));
  f.quiet_p99_ms = 1;
  f.forwarded.bytes = 100;
  f.ideal_bytes = 100;
  return f;
}

bool PassesGates(const ChangeFigures& figures) {
  Report report("elastic", "", GateSet::kAll);
  CheckChange(figures, &report);
  return report.Finish() == kExitOk;
}

TEST(ElasticReportTest, AChangeThatLosesNothingIsHeldAgainstTheUndisturbedRun) {
  EXPECT_TRUE(PassesGates(GoodChange()));
  ChangeFigures f = GoodChange();
  f.hit_percent = 38.5;
  EXPECT_FALSE(PassesGates(f)) << "2.5 points below";
  f.ideal_percent = 39;  // earlier losses cost the ideal 3 points
  EXPECT_DOUBLE_EQ(f.Points(), 0.5);
  EXPECT_TRUE(PassesGates(f));
}

TEST(ElasticReportTest, AChangeThatLosesBlocksIsHeldAgainstTheIdeal) {
  ChangeFigures f = GoodChange();
  f.lost = true;
  f.ideal_bytes = 0;
  f.hit_percent = 20;
  f.ideal_percent = 20.5;
  EXPECT_TRUE(PassesGates(f)) << "however far from the undisturbed run";
  f.ideal_percent = 21.5;
  EXPECT_FALSE(PassesGates(f));
}

TEST(ElasticReportTest, FailedGetsSlowGetsAndWhatMovedTooMuchFail) {
  ChangeFigures failed = GoodChange(), slow = GoodChange(), moved = GoodChange();
  failed.sums.failed_gets = 1;
  EXPECT_FALSE(PassesGates(failed));
  failed.killed = true;
  EXPECT_TRUE(PassesGates(failed)) << "nobody can answer for a server that was killed";
  slow.quiet_p99_ms = 0.4;
  EXPECT_FALSE(PassesGates(slow));
  moved.forwarded.bytes = 120;
  EXPECT_FALSE(PassesGates(moved));
  moved.ideal_bytes = 0;
  EXPECT_TRUE(std::isnan(moved.MovedRatio()));
}

}  // namespace
}  // namespace ems::bench
