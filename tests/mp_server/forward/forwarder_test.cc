// What must hold: what a slot had before it moved is found at its new owner, and never once a later
// change of it was acknowledged; who cannot be asked costs a miss and no more.
#include "mp_server/forward/forwarder.h"

#include <random>

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::WireStatus;

class ForwarderTest : public ForwardTest {
 protected:
  // Server 1 has the slot, and gives it to server 2.
  void Begin() {
    Start(1);
    Start(2);
    ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));
  }
  void Hand() { ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 2)); }
};

TEST_F(ForwarderTest, WhatTheOwnerBeforeHadIsFoundAndStored) {
  Begin();
  const std::string large(200'000, 'l');
  ASSERT_EQ(Node(1).Put(kSlot, "small", "v1"), WireStatus::kOk);
  ASSERT_EQ(Node(1).Put(kSlot, "large", large), WireStatus::kOk);
  Hand();
  EXPECT_EQ(Node(1).Get(kSlot, "small").status, WireStatus::kWrongOwner) << "clients find nothing";
  EXPECT_EQ(Node(2).Get(kSlot, "small").value, "v1");
  EXPECT_EQ(Node(2).Get(kSlot, "large").value, large);
  EXPECT_TRUE(Node(2).HasItself("small"));
  EXPECT_EQ(Node(2).Get(kSlot, "never").status, WireStatus::kMiss);
  const ForwardMetrics& metrics = Node(2).metrics().forward();
  EXPECT_EQ(metrics.hits.value(), 2);
  EXPECT_EQ(metrics.misses.value(), 1);
  EXPECT_EQ(metrics.bytes.value(), 2 + 200'000);
}

TEST_F(ForwarderTest, ExistsAsksWithoutBringingIt) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "a", "12345"), WireStatus::kOk);
  ASSERT_EQ(Node(1).Put(kSlot, "gone", "v1"), WireStatus::kOk);
  Hand();
  EXPECT_EQ(Node(2).Remove(kSlot, "gone"), WireStatus::kMiss);
  EXPECT_EQ(Node(2).Exist(kSlot, {"never", "a", "gone"}),
            (std::map<std::string, uint64_t>{{"a", 5}}));
  EXPECT_TRUE(Node(2).ExistsOne(kSlot, "a"));
  EXPECT_FALSE(Node(2).ExistsOne(kSlot, "never"));
  EXPECT_FALSE(Node(2).HasItself("a"));
}

TEST_F(ForwarderTest, ARemovedKeyDoesNotComeBack) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  EXPECT_EQ(Node(2).Remove(kSlot, "k"), WireStatus::kMiss) << "it was not here yet";
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
}

TEST_F(ForwarderTest, AnOverwrittenValueDoesNotComeBackAfterAnEviction) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, "k", "v2"), WireStatus::kOk);
  EXPECT_EQ(Node(2).Get(kSlot, "k").value, "v2");
  Node(2).Evict("k");
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
}

TEST_F(ForwarderTest, WhatWasForwardedAndEvictedIsForwardedAgain) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  EXPECT_EQ(Node(2).Get(kSlot, "k").value, "v1");
  Node(2).Evict("k");
  EXPECT_EQ(Node(2).Get(kSlot, "k").value, "v1");
}

// The old owner may still take Puts: what it has by now may not be the last word.
TEST_F(ForwarderTest, WhoHasNotLostTheSlotGivesNothing) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Publish({1, 2}, 2);
  Install(2);
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v2"), WireStatus::kOk) << "its own view";
  Install(1);
  EXPECT_EQ(Node(2).Get(kSlot, "k").value, "v2");
}

TEST_F(ForwarderTest, ThatServerIsAskedAgainUntilItHasTheView) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Publish({1, 2}, 2);
  Install(2);
  Thread late("late", [&] {
    ::poll(nullptr, 0, 20);
    Install(1);
  });
  EXPECT_EQ(Node(2).Get(kSlot, "k").value, "v1");
}

// A view that it did not see may have given the slot to a third server, which took changes.
TEST_F(ForwarderTest, WhoMissedAViewMayKeepNothing) {
  Begin();
  Start(3);
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Publish({1, 2, 3}, 3);
  Install(3);
  ASSERT_EQ(Node(3).Put(kSlot, "k", "v2"), WireStatus::kOk);
  Kill(3);
  Publish({1, 2}, 2);
  Install(1);
  Install(2);
  EXPECT_EQ(Node(1).Usage().kept_objects, 0U);
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
}

TEST_F(ForwarderTest, AServerThatComesBackEmptyGetsWhatTheOneInBetweenHas) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "lost", "v1"), WireStatus::kOk);
  Kill(1);
  Move({2}, 2);
  EXPECT_EQ(Node(2).Get(kSlot, "lost").status, WireStatus::kMiss);
  ASSERT_EQ(Node(2).Put(kSlot, "k", "v2"), WireStatus::kOk);
  Start(1);
  Move({1, 2}, 1);
  EXPECT_EQ(Node(1).Get(kSlot, "k").value, "v2");
  EXPECT_EQ(Node(1).Get(kSlot, "lost").status, WireStatus::kMiss);
}

// What it kept itself is older than what the server in between took, but where that one took
// nothing.
TEST_F(ForwarderTest, ASlotThatComesBackHasWhatNobodyChanged) {
  Begin();
  for (const char* key : {"quiet", "changed", "removed", "read"})
    ASSERT_EQ(Node(1).Put(kSlot, key, "v1"), WireStatus::kOk);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, "changed", "v2"), WireStatus::kOk);
  ASSERT_EQ(Node(2).Put(kSlot, "evicted", "v2"), WireStatus::kOk);
  Node(2).Evict("evicted");
  (void)Node(2).Remove(kSlot, "removed");
  EXPECT_EQ(Node(2).Get(kSlot, "read").value, "v1");
  Move({1, 2}, 1);
  EXPECT_EQ(Node(1).Exist(kSlot, {"quiet", "changed", "removed", "read", "evicted", "never"}),
            (std::map<std::string, uint64_t>{{"quiet", 2}, {"changed", 2}, {"read", 2}}));
  EXPECT_EQ(Node(1).Get(kSlot, "quiet").value, "v1") << "from its own memory";
  EXPECT_EQ(Node(1).Get(kSlot, "changed").value, "v2");
  EXPECT_EQ(Node(1).Get(kSlot, "removed").status, WireStatus::kMiss);
  EXPECT_EQ(Node(1).Get(kSlot, "read").value, "v1");
  EXPECT_EQ(Node(1).Get(kSlot, "evicted").status, WireStatus::kMiss);
}

TEST_F(ForwarderTest, AThirdOwnerFindsWhatTheFirstHad) {
  Begin();
  Start(3);
  ASSERT_EQ(Node(1).Put(kSlot, "quiet", "v1"), WireStatus::kOk);
  ASSERT_EQ(Node(1).Put(kSlot, "changed", "v1"), WireStatus::kOk);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, "changed", "v2"), WireStatus::kOk);
  Node(2).Evict("changed");
  Move({1, 2, 3}, 3);
  EXPECT_EQ(Node(3).Get(kSlot, "quiet").value, "v1");
  EXPECT_EQ(Node(3).Get(kSlot, "changed").status, WireStatus::kMiss);
}

// The one in between has restarted and knows nothing of what it took.
TEST_F(ForwarderTest, WhoForgotItsChangesVouchesForNothing) {
  Begin();
  Start(3);
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, "k", "v2"), WireStatus::kOk);
  Start(2);
  Move({1, 2, 3}, 2);
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  Move({1, 2, 3}, 3);
  EXPECT_EQ(Node(3).Get(kSlot, "k").status, WireStatus::kMiss);
}

TEST_F(ForwarderTest, WhatTakesLongerThanTheTimeoutIsAMiss) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Node(2).Forward({.timeout = milliseconds(5)});
  Publish({1, 2}, 2);
  Install(2);  // the other one waits for that view, and has no time to
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  EXPECT_EQ(Node(2).metrics().forward().hits.value(), 0);
}

TEST_F(ForwarderTest, ADeadPeerIsNotAskedForLong) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  Kill(1);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Node(2).Get(kSlot, "k" + std::to_string(i)).status, WireStatus::kMiss);
  EXPECT_EQ(Node(2).metrics().forward().failed.value(), CircuitBreaker::kFailuresToOpen);
  EXPECT_EQ(Node(2).metrics().forward().refused.value(), 20 - CircuitBreaker::kFailuresToOpen);
}

TEST_F(ForwarderTest, AServerThatIsInNoViewIsNotAsked) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  Kill(1);
  ASSERT_NO_FATAL_FAILURE(Publish({2}, 2));
  Install(2);
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  EXPECT_FALSE(Node(2).ExistsOne(kSlot, "k"));
  EXPECT_EQ(Node(2).metrics().forward().failed.value(), 0);
  EXPECT_EQ(Node(2).metrics().forward().refused.value(), 0);
}

TEST_F(ForwarderTest, WhatIsBeyondTheBoundIsRefused) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Node(2).Forward({.pending_max = 0});
  Hand();
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  EXPECT_FALSE(Node(2).ExistsOne(kSlot, "k"));
  EXPECT_EQ(Node(2).metrics().forward().refused.value(), 2);
}

TEST_F(ForwarderTest, WhatIsKeptGoesAfterItsTime) {
  Begin();
  ASSERT_EQ(Node(1).Put(kSlot, "k", "v1"), WireStatus::kOk);
  Hand();
  EXPECT_EQ(Node(1).Usage().kept_objects, 1U);
  clock_.Advance(ForwardNode::kKeepFor);
  (void)Node(1).dram().EvictToWatermark();
  EXPECT_EQ(Node(1).Usage().kept_objects, 0U);
  EXPECT_EQ(Node(2).Get(kSlot, "k").status, WireStatus::kMiss);
  (void)Node(2).dram().EvictToWatermark();
  EXPECT_FALSE(Node(2).moved().AnyOpen()) << "nobody is asked any more";
}

TEST_F(ForwarderTest, StoppingEndsWhatIsUnderWay) {
  Begin();
  Publish({1, 2}, 2);
  Install(2);
  std::atomic<bool> woken{false};
  const FetchPtr fetch =
      Node(2).forwarder().Start(ForwardNode::kNs, kSlot, "k", KeyHash("k"), [&] { woken = true; });
  ASSERT_NE(fetch, nullptr);
  Node(2).Forward({});
  EXPECT_TRUE(woken);
  EXPECT_EQ(fetch->state(), Fetch::State::kMiss);
}

// Slots move at random among servers that come and go, while keys are put, removed and read: a read
// finds the value that was acknowledged last, or nothing.
class RandomMovesTest : public ForwardTest, public ::testing::WithParamInterface<int> {
 protected:
  void StartHasty(uint32_t id) {
    Start(id);
    Node(id).Forward({.timeout = milliseconds(20)});  // some have no view for long
    if (migrates()) Node(id).Migrate({.page_keys = 2, .timeout = milliseconds(20)});
  }
  static bool migrates() { return GetParam() >= kMigrateFrom; }
  static constexpr int kMigrateFrom = 3;
};

TEST_P(RandomMovesTest, NoOldValueComesBack) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  const std::set<uint32_t> shown{1, 2, 3};
  for (const uint32_t id : shown) StartHasty(id);
  uint32_t owner = 1;
  Move(shown, owner);
  std::map<std::string, std::string> newest;  // empty: removed
  int hits = 0, values = 0;
  double brought = 0;
  for (int step = 0; step < 300; ++step) {
    const std::string key = "k" + std::to_string(below(12));
    for (uint32_t i = migrates() ? below(4) : 0; i > 0; --i) {
      clock_.Advance(milliseconds(500));
      const double before = Node(owner).metrics().migrate().keys.value();
      (void)Node(owner).migrator().Step();
      brought += Node(owner).metrics().migrate().keys.value() - before;
    }
    switch (below(12)) {
      case 0: {  // the slot moves; some servers miss the view, or hear of it late
        if (below(2) == 0) owner = 1 + below(3);
        const uint32_t misses = below(3) == 0 ? 1 + below(3) : 0;
        Publish(shown, owner);
        for (const auto& [id, node] : nodes_)
          if (id != NodeId(owner) && id.value() != misses) Install(id.value());
        Install(owner);
        break;
      }
      case 1: {  // one is killed, and comes back
        const uint32_t id = 1 + below(3);
        StartHasty(id);
        if (owner == id && below(2) == 0) owner = 1 + id % 3;
        Move(shown, owner);
        break;
      }
      case 2:
        Node(owner).Evict(key);
        break;
      case 3:
        (void)Node(owner).Remove(kSlot, key);
        newest[key].clear();
        break;
      case 4:
      case 5: {
        const std::string value = key + "=" + std::to_string(++values);
        ASSERT_EQ(Node(owner).Put(kSlot, key, value), WireStatus::kOk) << step;
        newest[key] = value;
        break;
      }
      case 6:
        if (Node(owner).Exist(kSlot, {key}).empty()) break;
        EXPECT_FALSE(newest[key].empty()) << "step " << step << ": " << key << " was removed";
        break;
      default: {
        const auto got = Node(owner).Get(kSlot, key);
        if (got.status != WireStatus::kOk) break;
        ++hits;
        ASSERT_EQ(got.value, newest[key]) << "step " << step;
      }
    }
  }
  EXPECT_GT(hits, 10);
  if (migrates()) {
    EXPECT_GT(brought, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMovesTest, ::testing::Range(0, 9));

}  // namespace
}  // namespace ems::server
