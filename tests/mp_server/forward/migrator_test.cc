// What must hold: all that was kept of a slot comes by itself, and the slot is closed then and only
// then; no old value comes back by it, nothing that is in use goes for it, and who cannot be asked
// leaves the slot as it was.
#include "mp_server/forward/migrator.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::WireStatus;

class MigratorTest : public ForwardTest {
 protected:
  // Server 1 has the slot with keys k0, k1, …; the later ones were used later.
  void Begin(int keys, size_t value_bytes = 100) {
    Start(1);
    Start(2);
    ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));
    for (int i = 0; i < keys; ++i) {
      clock_.Advance(milliseconds(1));
      ASSERT_EQ(Node(1).Put(kSlot, Key(i), Value(i, value_bytes)), WireStatus::kOk);
    }
  }
  void Hand(Migrator::Options options = {}) {
    ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 2));
    Node(2).Migrate(options);
  }
  static std::string Key(int i) { return "k" + std::to_string(i); }
  static std::string Value(int i, size_t bytes = 100) {
    return Key(i) + std::string(bytes, static_cast<char>('a' + i % 26));
  }
  int There(uint32_t node, int keys) {
    int there = 0;
    for (int i = 0; i < keys; ++i) there += Node(node).HasItself(Key(i)) ? 1 : 0;
    return there;
  }
  const MigrateMetrics& Metrics(uint32_t node) { return Node(node).metrics().migrate(); }
  // Objects of its own until there is no room left without eviction.
  int Fill(uint32_t node, SlotId slot, size_t bytes) {
    int keys = 0;
    while (Node(node).dram().IdleMost(ForwardNode::kNs, "own", bytes) == Duration::max()) {
      EXPECT_EQ(Node(node).Put(slot, "own" + std::to_string(keys++), std::string(bytes, 'o')),
                WireStatus::kOk);
    }
    return keys;
  }
};

TEST_F(MigratorTest, AllKeysComeWithoutBeingAskedForAndTheSlotIsClosed) {
  constexpr int kKeys = 40;
  Begin(kKeys);
  Hand({.page_keys = 7});
  EXPECT_EQ(Node(2).moved().origins(), std::vector{NodeId(1)});
  Node(2).StepAll();
  EXPECT_EQ(There(2, kKeys), kKeys);
  EXPECT_FALSE(Node(2).moved().AnyOpen());
  EXPECT_TRUE(Node(2).moved().origins().empty());
  EXPECT_EQ(Metrics(2).keys.value(), kKeys);
  EXPECT_EQ(Metrics(2).closed.value(), 1);
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(Node(2).Get(kSlot, Key(i)).value, Value(i));
}

// A Get that has looked for a key before it came asks for it after.
TEST_F(MigratorTest, TheSlotIsClosedAWhileAfterAllHasCome) {
  Begin(3);
  Hand({.linger = seconds(3)});
  Node(2).StepAll();
  EXPECT_EQ(There(2, 3), 3);
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  clock_.Advance(seconds(3));
  Node(2).StepAll();
  EXPECT_FALSE(Node(2).moved().AnyOpen());
}

TEST_F(MigratorTest, AfterThatAMissAsksNobody) {
  Begin(3);
  Hand();
  Node(2).StepAll();
  Kill(1);
  EXPECT_EQ(Node(2).Get(kSlot, "never").status, WireStatus::kMiss);
  EXPECT_FALSE(Node(2).ExistsOne(kSlot, "never"));
  const ForwardMetrics& forward = Node(2).metrics().forward();
  EXPECT_EQ(forward.misses.value() + forward.failed.value() + forward.refused.value(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Node(2).Get(kSlot, Key(i)).value, Value(i));
}

TEST_F(MigratorTest, WhatWasUsedLastComesFirst) {
  Begin(5);
  Hand({.page_keys = 2});
  while (Metrics(2).keys.value() < 2) ASSERT_EQ(Node(2).migrator().Step(), Duration::zero());
  EXPECT_TRUE(Node(2).HasItself(Key(4)) && Node(2).HasItself(Key(3)));
}

TEST_F(MigratorTest, WhatChangedMeanwhileDoesNotComeBack) {
  Begin(4);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, Key(0), "v2"), WireStatus::kOk);
  Node(2).Evict(Key(0));
  ASSERT_EQ(Node(2).migrator().Step(), Duration::zero()) << "the list";
  (void)Node(2).Remove(kSlot, Key(1));
  ASSERT_EQ(Node(2).Put(kSlot, Key(2), "v2"), WireStatus::kOk);
  Node(2).StepAll();
  EXPECT_FALSE(Node(2).HasItself(Key(0)));
  EXPECT_FALSE(Node(2).HasItself(Key(1)));
  EXPECT_EQ(Node(2).Get(kSlot, Key(2)).value, "v2");
  EXPECT_EQ(Node(2).Get(kSlot, Key(3)).value, Value(3));
  EXPECT_FALSE(Node(2).moved().AnyOpen());
}

// Changes are not marked any more once the slot is closed: who has it next must hear of nobody.
TEST_F(MigratorTest, AClosedSlotVouchesForNothing) {
  Begin(2);
  Start(3);
  Hand();
  Node(2).StepAll();
  ASSERT_FALSE(Node(2).moved().AnyOpen());
  ASSERT_EQ(Node(2).Put(kSlot, Key(0), "v2"), WireStatus::kOk);
  Node(2).Evict(Key(0));
  Move({1, 2, 3}, 3);
  EXPECT_EQ(Node(3).Get(kSlot, Key(0)).status, WireStatus::kMiss);
  EXPECT_EQ(Node(3).Get(kSlot, Key(1)).value, Value(1));
}

TEST_F(MigratorTest, ASlotThatMovesAgainInTheMiddleComesFromBoth) {
  constexpr int kKeys = 12;
  Begin(kKeys);
  Start(3);
  Hand({.page_keys = 2});
  while (Metrics(2).keys.value() < 5) ASSERT_EQ(Node(2).migrator().Step(), Duration::zero());
  (void)Node(2).Remove(kSlot, Key(0));
  Move({1, 2, 3}, 3);
  Node(2).StepAll();
  EXPECT_EQ(Metrics(2).keys.value(), 5) << "it has lost the slot";
  EXPECT_EQ(Metrics(2).closed.value(), 0);
  Node(3).Migrate();
  ASSERT_EQ(Node(3).migrator().Step(), Duration::zero());
  EXPECT_EQ(Node(3).moved().origins(), std::vector{NodeId(2)});
  Node(3).StepAll();
  EXPECT_EQ(There(3, kKeys), kKeys - 1);
  EXPECT_FALSE(Node(3).HasItself(Key(0)));
  EXPECT_FALSE(Node(3).moved().AnyOpen());
}

TEST_F(MigratorTest, ASlotIsNotClosedBeforeTheWholeChainWasAsked) {
  Begin(3);
  Start(3);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2, 3}, 2));
  ASSERT_EQ(Node(2).Put(kSlot, "new", "v"), WireStatus::kOk);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2, 3}, 3));
  Kill(1);
  ASSERT_NO_FATAL_FAILURE(Move({2, 3}, 3));
  Node(3).Migrate();
  Node(3).StepAll();
  EXPECT_TRUE(Node(3).HasItself("new"));
  EXPECT_TRUE(Node(3).moved().IsOpen(kSlot)) << "server 1 may be in the next view again";
  EXPECT_EQ(Node(3).moved().origins(), (std::vector{NodeId(1), NodeId(2)}));
}

TEST_F(MigratorTest, ASlotThatComesBackIsBroughtFromOwnMemory) {
  Begin(3);
  Hand();
  ASSERT_EQ(Node(2).Put(kSlot, Key(0), "v2"), WireStatus::kOk);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));
  Node(1).Migrate();
  Node(1).StepAll();
  EXPECT_FALSE(Node(1).moved().AnyOpen());
  EXPECT_EQ(Node(1).Get(kSlot, Key(0)).value, "v2");
  EXPECT_EQ(Node(1).Get(kSlot, Key(1)).value, Value(1));
  EXPECT_EQ(Node(1).Get(kSlot, Key(2)).value, Value(2));
}

// By then what is asked would be asked by the view before, in which the slot is the origin's still.
TEST_F(MigratorTest, NobodyIsAskedBeforeTheViewIsInstalled) {
  Begin(2);
  Publish({1, 2}, 2);
  ssd::SlotGrant grant = GrantOf(*view_, NodeId(2), 0);
  std::bitset<kSlotCount> fresh;
  fresh.set(kSlot.value());
  Node(2).GainSlots(*view_, grant, fresh);
  Node(2).Migrate();
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  EXPECT_EQ(Node(1).metrics().rpc().accepted.value(), 0);
}

TEST_F(MigratorTest, AServerThatDoesNotHaveTheViewLeavesTheSlotOpen) {
  Begin(2);
  Publish({1, 2}, 2);
  Install(2);
  Node(2).Migrate({.timeout = milliseconds(10)});
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  Install(1);
  Node(2).Migrate();
  Node(2).StepAll();
  EXPECT_FALSE(Node(2).moved().AnyOpen());
  EXPECT_EQ(There(2, 2), 2);
}

TEST_F(MigratorTest, AnOpenBreakerStopsItUntilItCloses) {
  Begin(20);
  Hand({.page_keys = 4});
  while (Metrics(2).keys.value() < 3) ASSERT_EQ(Node(2).migrator().Step(), Duration::zero());
  const auto breaker = Node(2).forwarder().peers().BreakerOf(NodeId(1));
  const TimePoint far = Clock::System().Now() + std::chrono::hours(1);
  for (int i = 0; i < CircuitBreaker::kFailuresToOpen; ++i) breaker->OnFailure(far);
  Node(2).StepAll();
  EXPECT_EQ(Metrics(2).keys.value(), 3);
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  breaker->OnSuccess();
  clock_.Advance(seconds(1));
  Node(2).StepAll();
  EXPECT_EQ(There(2, 20), 20);
  EXPECT_FALSE(Node(2).moved().AnyOpen());
}

TEST_F(MigratorTest, AnOriginThatDiesInTheMiddleLeavesTheSlotOpen) {
  Begin(20);
  Hand({.page_keys = 4, .timeout = seconds(1)});
  while (Metrics(2).keys.value() < 6) ASSERT_EQ(Node(2).migrator().Step(), Duration::zero());
  Kill(1);
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  EXPECT_EQ(Metrics(2).closed.value(), 0);
  EXPECT_EQ(There(2, 20), 6);
  clock_.Advance(ForwardNode::kKeepFor);
  (void)Node(2).dram().EvictToWatermark();
  Node(2).StepAll();
  EXPECT_FALSE(Node(2).moved().AnyOpen());
  EXPECT_EQ(Metrics(2).given_up.value(), 1);
}

TEST_F(MigratorTest, OfAnOlderServerOnlyWhatIsAskedForComes) {
  Begin(3);
  Node(1).SetLists(false);
  Hand();
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  EXPECT_EQ(There(2, 3), 0);
  EXPECT_EQ(Node(2).Get(kSlot, Key(1)).value, Value(1));
  Node(1).SetLists(true);  // it was updated
  clock_.Advance(seconds(60));
  Node(2).StepAll();
  EXPECT_EQ(There(2, 3), 3);
}

TEST_F(MigratorTest, AServerThatStopsLeavesTheSlotOpen) {
  Begin(2);
  Hand();
  Node(1).Drain();
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
}

TEST_F(MigratorTest, WhatIsUsedHereDoesNotGoForWhatIsKept) {
  Begin(4, 200'000);
  Hand();
  clock_.Advance(seconds(10));
  const int own = Fill(2, kSlot, 200'000);
  ASSERT_GT(own, 20);
  Node(2).StepAll();
  EXPECT_EQ(Metrics(2).keys.value(), 0);
  EXPECT_EQ(Metrics(2).no_room.value(), 1);
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot));
  for (int i = 0; i < own; ++i) EXPECT_TRUE(Node(2).HasItself("own" + std::to_string(i))) << i;
  for (int i = 0; i < own / 2; ++i) (void)Node(2).Remove(kSlot, "own" + std::to_string(i));
  clock_.Advance(seconds(10));
  Node(2).StepAll();
  EXPECT_EQ(There(2, 4), 4);
  EXPECT_FALSE(Node(2).moved().AnyOpen());
}

TEST_F(MigratorTest, WhatIsKeptGoesBeforeWhatIsColder) {
  Begin(0);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 2));
  (void)Fill(1, SlotId(3), 200'000);
  clock_.Advance(seconds(10));
  for (int i = 0; i < 4; ++i)
    ASSERT_EQ(Node(2).Put(kSlot, Key(i), Value(i, 200'000)), WireStatus::kOk);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));
  Node(1).Migrate();
  Node(1).StepAll();
  EXPECT_EQ(There(1, 4), 4);
  EXPECT_FALSE(Node(1).moved().AnyOpen());
}

TEST_F(MigratorTest, TheRateIsKept) {
  Begin(20, 100'000);
  Hand({.bytes_per_s = kMiB});
  const Duration took = Node(2).StepAll();
  EXPECT_EQ(There(2, 20), 20);
  EXPECT_GT(took, milliseconds(1750));  // 2 MB, less the burst
  EXPECT_LT(took, milliseconds(2000));
  EXPECT_GT(Metrics(2).seconds.value(), 1.75);
}

TEST_F(MigratorTest, NamespacesComeAndGo) {
  constexpr NamespaceRef kOther{NamespaceId(2), 9};
  Start(1);
  Start(2);
  Node(1).Know({ForwardNode::kNs, kOther});
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));
  ASSERT_EQ(Node(1).Put(kSlot, "a", "v1"), WireStatus::kOk);
  ASSERT_EQ(Node(1).PutIn(kOther, kSlot, "b", "v1"), WireStatus::kOk);
  Hand();
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).HasItself("a"));
  EXPECT_TRUE(Node(2).moved().IsOpen(kSlot)) << "its news is on the way";
  Node(2).Know({ForwardNode::kNs, kOther});
  clock_.Advance(seconds(1));
  Node(2).StepAll();
  EXPECT_TRUE(Node(2).dram().Find(kOther, "b", false).has_value());
  EXPECT_FALSE(Node(2).moved().AnyOpen());
}

TEST_F(MigratorTest, ADeletedNamespaceHoldsNothingOpen) {
  Begin(2);
  Hand();
  Node(1).Know({});
  Node(2).StepAll();
  EXPECT_FALSE(Node(2).moved().AnyOpen());
  EXPECT_EQ(Metrics(2).keys.value(), 0);
}

TEST_F(MigratorTest, ItsThreadBringsWhatComesWhileItSleeps) {
  Begin(10);
  Node(2).Migrate();
  Node(2).migrator().Start();
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 2));
  Node(2).migrator().Poke();
  EXPECT_TRUE(testing::Eventually([&] { return !Node(2).moved().AnyOpen(); }));
  EXPECT_EQ(There(2, 10), 10);
}

}  // namespace
}  // namespace ems::server
