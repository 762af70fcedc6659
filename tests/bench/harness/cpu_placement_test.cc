#include "bench/harness/cpu_placement.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace ems::bench {
namespace {

int CpusAllowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(gettid(), sizeof(set), &set), 0);
  return CPU_COUNT(&set);
}

TEST(CpuPlacementTest, PinsTheCallerAndPutsItBack) {
  const int before = CpusAllowed();
  {
    CpuPlacement placement;
    const Status apart = placement.Apart({});
    if (before < 2) {
      EXPECT_EQ(apart.code(), StatusCode::kFailedPrecondition);
      return;
    }
    ASSERT_TRUE(apart.ok()) << apart;
    EXPECT_EQ(CpusAllowed(), 1);
  }
  EXPECT_EQ(CpusAllowed(), before);
}

TEST(CpuPlacementTest, AServerThatHasEndedIsNoError) {
  if (CpusAllowed() < 2) return;
  const pid_t gone = 0x3fffff;
  CpuPlacement placement;
  EXPECT_TRUE(placement.Apart(std::span(&gone, 1)).ok());
}

}  // namespace
}  // namespace ems::bench
