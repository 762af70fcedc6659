// What must hold: calls that are quick beside bulk that hardly moves are no proof of fairness.
#include "bench/fairness/fairness_gates.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ems::bench {
namespace {

// All is well in it.
FairnessResult Fair() {
  FairnessResult result;
  for (Contrast* contrast : {&result.gets, &result.puts}) {
    contrast->quiet.Record(std::chrono::microseconds(100));
    contrast->busy.Record(std::chrono::microseconds(150));
  }
  result.bulk_seconds = 2;
  result.bulk_read_bytes = result.bulk_written_bytes = 250'000'000;
  return result;
}

bool Passes(const FairnessResult& result) {
  Report report("fairness", "", GateSet::kAll);
  CheckFairness(result, &report);
  return report.Finish() == kExitOk;
}

TEST(FairnessGatesTest, BothKindsOfBulkHaveToMove) {
  EXPECT_TRUE(Passes(Fair()));
  FairnessResult unread = Fair(), unwritten = Fair();
  unread.bulk_read_bytes /= 2;
  unwritten.bulk_written_bytes = 0;
  EXPECT_FALSE(Passes(unread));
  EXPECT_FALSE(Passes(unwritten));
}

TEST(FairnessGatesTest, SlowCallsAndEvictedObjectsFail) {
  FairnessResult slow = Fair(), evicted = Fair();
  slow.gets.busy.Record(std::chrono::milliseconds(2));
  evicted.evicted_objects = 1;
  EXPECT_FALSE(Passes(slow));
  EXPECT_FALSE(Passes(evicted));
}

}  // namespace
}  // namespace ems::bench
