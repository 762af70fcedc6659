// What must hold: each part is done once, by a member that there is, before ForEach returns; with
// one member on the caller's own thread.
#include "pdc/engine/internal/team.h"

#include <gtest/gtest.h>

namespace ems::pdc::internal {
namespace {

thread_local bool is_caller = false;

TEST(TeamTest, EachPartIsDoneOnce) {
  for (const size_t members : {1, 2, 5}) {
    Team team(members);
    EXPECT_EQ(team.members(), members);
    for (size_t parts = 0; parts < 200; ++parts) {
      std::vector<int> done(parts);
      std::atomic<bool> strangers{false};
      team.ForEach(parts, [&](size_t part, size_t member) {
        ++done[part];  // nobody else has it
        if (member >= members) strangers = true;
      });
      EXPECT_EQ(done, std::vector<int>(parts, 1));
      EXPECT_FALSE(strangers);
    }
  }
}

TEST(TeamTest, MembersDoNotShareScratch) {
  Team team(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 300; ++round) {
    team.ForEach(16, [&](size_t, size_t member) {
      if (busy[member].fetch_add(1) != 0) ++clashes;
      busy[member].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(TeamTest, OneMemberIsTheCaller) {
  Team team(1);
  is_caller = true;
  size_t next = 0;
  team.ForEach(5, [&](size_t part, size_t) {
    EXPECT_TRUE(is_caller);
    EXPECT_EQ(part, next++);
  });
}

}  // namespace
}  // namespace ems::pdc::internal
