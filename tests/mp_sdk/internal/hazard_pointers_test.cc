// What must hold: the end that the server looks up to is above every hazard pointer that is taken,
// at each moment, and comes down when those at the top are free again.
#include "mp_sdk/internal/hazard_pointers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <utility>
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

TEST(HazardPointersTest, TheEndIsAboveWhatIsTakenHoweverManyTakeAndGive) {
  constexpr int kThreads = 4;
  constexpr size_t kEach = 200;  // some beyond kEndMin, none refused for want of hazard pointers
  HazardPointers hazards;
  std::atomic<uint32_t> end{0};
  std::atomic<int> above{0};
  std::vector<Thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back("taker", [&, i] {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      std::vector<uint32_t> held;
      for (int step = 0; step < 40'000; ++step) {
        const bool take = held.size() < random() % kEach;
        if (take) {
          if (const auto hazard = hazards.Take(&end)) held.push_back(*hazard);
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          hazards.Give(held.back(), &end);
          held.pop_back();
        }
        const uint32_t now = end.load();
        for (const uint32_t hazard : held) above += hazard >= now ? 1 : 0;
      }
      for (const uint32_t hazard : held) hazards.Give(hazard, &end);
    });
  }
  threads.clear();
  EXPECT_EQ(above, 0);
  EXPECT_LE(end, shm::kHazardsMax);
}

}  // namespace
}  // namespace ems::internal
