// What must hold: the first signal is only noted; the second one ends the process.
#include "bench/harness/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ems::bench {
namespace {

TEST(InterruptDeathTest, FirstSignalIsNotedSecondOneEnds) {
  CatchInterrupts();
  EXPECT_FALSE(Interrupted());
  std::raise(SIGTERM);
  EXPECT_TRUE(Interrupted());
  EXPECT_EXIT(std::raise(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace ems::bench
