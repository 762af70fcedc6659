// What must hold: the end that the server looks up to is above every hazard pointer that is taken,
// at each moment, and comes down when those at the top are free again.
#include "mp_sdk/internal/hazard_pointers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"

namespace ems::internal {
namespace {

TEST(HazardPointersTest, TheEndFollowsWhatIsTaken) {
  HazardPointers hazards;
  std::atomic<uint32_t> end{0};
  std::vector<uint32_t> taken;
  while (const auto hazard = hazards.Take(&end)) taken.push_back(*hazard);
  EXPECT_EQ(taken.size(), shm::kHazardsMax);
  EXPECT_EQ(end, shm::kHazardsMax);
  std::ranges::sort(taken);
  // A hole in the middle lowers nothing.
  for (uint32_t i = 512; i < 640; ++i) hazards.Give(taken[i], &end);
  EXPECT_EQ(end, shm::kHazardsMax);
  // From the top, down to what is still taken.
  for (uint32_t i = 640; i < shm::kHazardsMax; ++i) hazards.Give(taken[i], &end);
  EXPECT_EQ(end, 512U);
  const auto again = hazards.Take(&end);
  ASSERT_TRUE(again.has_value());
  EXPECT_GT(end, *again);
  hazards.Give(*again, &end);
  for (uint32_t i = 0; i < 512; ++i) hazards.Give(taken[i], &end);
  EXPECT_EQ(end, HazardPointers::kEndMin);
}

TEST(HazardPointersTest, FewAreTakenAtTheBottomAndLowerNothing) {
  HazardPointers hazards;
  std::atomic<uint32_t> end{0};
  const auto first = hazards.Take(&end);
  ASSERT_TRUE(first.has_value());
  EXPECT_LT(*first, HazardPointers::kEndMin);
  EXPECT_EQ(end, *first + 1);
  hazards.Give(*first, &end);
  EXPECT_EQ(end, *first + 1);
}

// All at the bottom are taken, so that each of the others is the last of its group when it goes.
TEST(HazardPointersTest, TheEndIsAboveWhatIsTakenHoweverOftenItIsLowered) {
  HazardPointers hazards;
  std::atomic<uint32_t> end{0};
  while (hazards.Take(&end)) {
  }
  for (uint32_t i = HazardPointers::kEndMin; i < shm::kHazardsMax; ++i) hazards.Give(i, &end);
  ASSERT_EQ(end, HazardPointers::kEndMin);
  std::atomic<int> taken{0}, above{0};
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("taker", [&] {
      for (int step = 0; step < 300'000; ++step) {
        const auto hazard = hazards.Take(&end);
        if (!hazard) continue;  // others were just looking at what is free
        ++taken;
        for (int look = 0; look < 4; ++look) above += *hazard >= end.load() ? 1 : 0;
        hazards.Give(*hazard, &end);
      }
    });
  }
  threads.clear();
  EXPECT_GT(taken, 1000);
  EXPECT_EQ(above, 0);
}

}  // namespace
}  // namespace ems::internal
