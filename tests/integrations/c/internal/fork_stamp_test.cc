#include "integrations/c/internal/fork_stamp.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ems::capi {
namespace {

TEST(ForkStampTest, AChildIsToldFromItsParent) {
  const ForkStamp parents;
  EXPECT_TRUE(parents.here());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ForkStamp childs;
    ::_exit(!parents.here() && childs.here() ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(parents.here());
}

}  // namespace
}  // namespace ems::capi
