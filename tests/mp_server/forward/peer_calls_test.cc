// What must hold: servers of the view are called where they are now, over a connection that is
// kept, and their breakers hear how it went.
#include "mp_server/forward/peer_calls.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

class PeerCallsTest : public ForwardTest {
 protected:
  void Begin() {
    Start(1);
    Start(2);
    Publish({1, 2}, 1);
    calls_.SetNodes(*view_);
  }
  Status Call(uint32_t node) {
    return calls_.Call(NodeId(node), Deadline::After(std::chrono::seconds(5)), &channels_,
                       [](fabric::RpcChannel*) { return OkStatus(); });
  }

  PeerCalls calls_;
  PeerCalls::Channels channels_;
};

TEST_F(PeerCallsTest, AConnectionIsKept) {
  Begin();
  EXPECT_EQ(Call(1), OkStatus());
  EXPECT_EQ(Call(1), OkStatus());
  EXPECT_EQ(Node(1).metrics().rpc().accepted.value(), 1);
}

TEST_F(PeerCallsTest, AServerThatMovesIsFoundByTheNextView) {
  Begin();
  EXPECT_EQ(Call(1), OkStatus());
  Start(1);
  EXPECT_FALSE(Call(1).ok());
  Publish({1, 2}, 1);
  calls_.SetNodes(*view_);
  EXPECT_EQ(Call(1), OkStatus());
}

TEST_F(PeerCallsTest, FailuresOpenTheBreaker) {
  Begin();
  Kill(1);
  const auto breaker = calls_.BreakerOf(NodeId(1));
  const TimePoint now = Clock::System().Now();
  for (int i = 0; i < CircuitBreaker::kFailuresToOpen; ++i) {
    EXPECT_TRUE(breaker->Allow(now));
    EXPECT_FALSE(Call(1).ok());
  }
  EXPECT_FALSE(breaker->Allow(now));
  EXPECT_EQ(Call(2), OkStatus());
}

TEST_F(PeerCallsTest, WhoIsInNoViewHasNoBreaker) {
  Begin();
  Publish({2}, 2);
  calls_.SetNodes(*view_);
  EXPECT_EQ(calls_.BreakerOf(NodeId(1)), nullptr);
  EXPECT_NE(calls_.BreakerOf(NodeId(2)), nullptr);
  EXPECT_EQ(Call(9).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::server
