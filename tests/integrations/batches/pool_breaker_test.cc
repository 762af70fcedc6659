#include "integrations/batches/pool_breaker.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::batches {
namespace {

using std::chrono::milliseconds;

const std::vector<Status> kSilent = {Error(StatusCode::kUnavailable, "gone"),
                                     Error(StatusCode::kDeadlineExceeded, "late"),
                                     Error(StatusCode::kAborted, "outcome unknown: gone")};

class PoolBreakerTest : public ::testing::Test {
 protected:
  // A view of so many servers, which own slot after slot.
  void Install(uint32_t servers) {
    std::vector<NodeInfo> nodes;
    for (uint32_t i = 0; i < servers; ++i) {
      NodeInfo node;
      node.id = NodeId(i + 1);
      node.name = std::to_string(i);
      nodes.push_back(std::move(node));
    }
    SlotTable slots;
    for (uint32_t i = 0; i < kSlotCount; ++i) {
      slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(i % servers + 1));
    }
    const auto view = DhtView::Make(ViewVersion(1, 1), std::move(nodes), slots, false);
    ASSERT_TRUE(view.ok()) << view.status();
    ASSERT_TRUE(views_.Install(*view));
  }
  // Routes that belong to exactly the first `owners` servers of the view.
  std::vector<std::string> Routes(size_t owners) {
    std::vector<std::string> routes;
    for (size_t i = 0; i < 10'000 && routes.size() < 8 * owners; ++i) {
      std::string route = std::to_string(i);
      const NodeId owner = views_.view()->OwnerId(SlotOf(NamespaceId(3), route));
      if (owner.value() == routes.size() % owners + 1) routes.push_back(std::move(route));
    }
    return routes;
  }

  ViewCache views_;
  ManualClock clock_;
  PoolBreaker breaker_{&views_, [] { return NamespaceId(3); }, clock_};
};

TEST_F(PoolBreakerTest, TwoBatchesWithoutAnAnswerOpenItAndOneASecondIsLetThrough) {
  Install(2);
  const auto routes = Routes(2);
  EXPECT_TRUE(breaker_.Judge(kSilent, routes));
  EXPECT_TRUE(breaker_.Allow());
  EXPECT_TRUE(breaker_.Judge(kSilent, routes));
  EXPECT_FALSE(breaker_.Allow());
  clock_.Advance(milliseconds(999));
  EXPECT_FALSE(breaker_.Allow());
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(breaker_.Allow());
  EXPECT_FALSE(breaker_.Allow());
  breaker_.OnAnswer();
  EXPECT_TRUE(breaker_.Allow());
}

TEST_F(PoolBreakerTest, AnyAnswerInBetweenStartsTheCountAgain) {
  Install(2);
  const auto routes = Routes(2);
  const std::vector<Status> answered = {kSilent[0], Miss()};
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(breaker_.Judge(kSilent, routes));
    EXPECT_FALSE(breaker_.Judge(answered, routes));
    EXPECT_TRUE(breaker_.Allow());
  }
}

TEST_F(PoolBreakerTest, BatchesOfSomeServersSayNothingOfThePool) {
  Install(3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(breaker_.Judge(kSilent, Routes(2)));
  EXPECT_TRUE(breaker_.Allow());
}

TEST_F(PoolBreakerTest, FourServersSpeakForALargePool) {
  Install(16);
  for (int i = 0; i < 5; ++i) breaker_.Judge(kSilent, Routes(3));
  EXPECT_TRUE(breaker_.Allow());
  for (int i = 0; i < 2; ++i) breaker_.Judge(kSilent, Routes(4));
  EXPECT_FALSE(breaker_.Allow());
}

}  // namespace
}  // namespace ems::batches
