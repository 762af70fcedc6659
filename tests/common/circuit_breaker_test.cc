// What must hold: five failures in a row open it for a second; then one call a second probes; one
// success closes it.
#include "common/circuit_breaker.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void Open(CircuitBreaker* breaker, const ManualClock& clock) {
  for (int i = 1; i < CircuitBreaker::kFailuresToOpen; ++i) {
    EXPECT_FALSE(breaker->OnFailure(clock.Now())) << i;
    EXPECT_TRUE(breaker->Allow(clock.Now())) << i;
  }
  EXPECT_TRUE(breaker->OnFailure(clock.Now()));
}

TEST(CircuitBreakerTest, FiveFailuresInARowOpenIt) {
  CircuitBreaker breaker;
  ManualClock clock;
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  Open(&breaker, clock);
  EXPECT_FALSE(breaker.Allow(clock.Now()));
  clock.Advance(milliseconds(999));
  EXPECT_FALSE(breaker.Allow(clock.Now()));
}

TEST(CircuitBreakerTest, ASuccessBetweenFailuresStartsTheCountAgain) {
  CircuitBreaker breaker;
  ManualClock clock;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(breaker.OnFailure(clock.Now()));
    if (i % 4 == 3) breaker.OnSuccess();
    EXPECT_TRUE(breaker.Allow(clock.Now()));
  }
}

TEST(CircuitBreakerTest, HalfOpenLetsOneProbeThroughASecond) {
  CircuitBreaker breaker;
  ManualClock clock;
  Open(&breaker, clock);
  clock.Advance(seconds(1));
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  EXPECT_FALSE(breaker.Allow(clock.Now())) << "only one probe";
  // The probe never reports back: the next second has its own.
  clock.Advance(seconds(1));
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  EXPECT_FALSE(breaker.OnFailure(clock.Now())) << "it was open already: counted once";
  EXPECT_FALSE(breaker.Allow(clock.Now()));
}

TEST(CircuitBreakerTest, ASuccessfulProbeClosesIt) {
  CircuitBreaker breaker;
  ManualClock clock;
  Open(&breaker, clock);
  clock.Advance(seconds(1));
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  breaker.OnSuccess();
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  EXPECT_TRUE(breaker.Allow(clock.Now()));
  clock.Advance(seconds(1));
  Open(&breaker, clock);
}

}  // namespace
}  // namespace ems
