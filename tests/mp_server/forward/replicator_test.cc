// What must hold: what is put in a namespace with replicas comes to those that hold copies, is read
// there by who says that a copy will do and by nobody else, and is the objects of who takes its
// slot over; removes, lost roles and deletions take it away again; nothing damaged is copied.
#include "mp_server/forward/replicator.h"

#include <cstring>

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using wire::WireStatus;

class CopiesTest : public ForwardTest {
 protected:
  CopiesTest() {
    immutable_ = true;
    replicas_ = 2;
  }
  void Begin(int keys, int servers = 2) {
    std::set<uint32_t> shown;
    for (int i = 1; i <= servers; ++i) {
      Start(static_cast<uint32_t>(i));
      shown.insert(static_cast<uint32_t>(i));
    }
    ASSERT_NO_FATAL_FAILURE(Move(shown, 1, {2}));
    PutAll(1, keys);
  }
  void PutAll(uint32_t node, int keys) {
    for (int i = 0; i < keys; ++i) {
      ASSERT_EQ(Node(node).Put(kSlot, Key(i), Value(i), /*overwrite=*/false), WireStatus::kOk);
    }
  }
  // After a change of view, or what was missed.
  void Repair(uint32_t node) {
    clock_.Advance(seconds(20));
    Node(node).CopyAll();
  }
  static std::string Key(int i) { return "k" + std::to_string(i); }
  static std::string Value(int i) { return Key(i) + std::string(100, static_cast<char>('a' + i)); }
  int There(uint32_t node, int keys) {
    int there = 0;
    for (int i = 0; i < keys; ++i) there += Node(node).HasItself(Key(i)) ? 1 : 0;
    return there;
  }
  const CopyMetrics& Metrics(uint32_t node) { return Node(node).metrics().copies(); }
};

TEST_F(CopiesTest, WhatIsPutComesToTheHolderAndIsReadThereWhereACopyWillDo) {
  Begin(20);
  EXPECT_EQ(There(2, 20), 0) << "behind the answer";
  EXPECT_EQ(Node(2).GetCopy(kSlot, Key(3)).status, WireStatus::kCopyMiss) << "that is no miss";
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 20), 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Node(2).GetCopy(kSlot, Key(i)).value, Value(i));
    EXPECT_EQ(Node(2).Get(kSlot, Key(i)).status, WireStatus::kWrongOwner);
  }
  EXPECT_EQ(Node(2).GetCopy(kSlot, "another").status, WireStatus::kCopyMiss);
  EXPECT_EQ(Node(1).GetCopy(kSlot, "another").status, WireStatus::kMiss) << "the owner knows";
  EXPECT_EQ(Metrics(1).copies.value(), 20);
  EXPECT_EQ(Metrics(1).repaired.value(), 0);
}

TEST_F(CopiesTest, WithoutReplicasNothingIsCopiedAndNoCopyIsRead) {
  replicas_ = 1;
  Begin(5);
  Node(1).CopyAll();
  Repair(1);
  EXPECT_EQ(There(2, 5), 0);
  EXPECT_EQ(Node(2).GetCopy(kSlot, Key(0)).status, WireStatus::kWrongOwner);
}

TEST_F(CopiesTest, WhoTakesOverHasWhatItHoldsAtOnce) {
  Begin(10);
  Node(1).CopyAll();
  Kill(1);
  ASSERT_NO_FATAL_FAILURE(Move({2}, 2));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Node(2).Get(kSlot, Key(i)).value, Value(i));
  EXPECT_EQ(Node(2).Get(kSlot, "another").status, WireStatus::kMiss);
}

TEST_F(CopiesTest, AnotherOneThatTakesOverGetsItFromTheHolder) {
  Begin(10, 3);
  Node(1).CopyAll();
  Kill(1);
  ASSERT_NO_FATAL_FAILURE(Move({2, 3}, 3, {2}));
  EXPECT_EQ(There(3, 10), 0);
  EXPECT_EQ(Node(3).Get(kSlot, Key(4)).value, Value(4)) << "as asked for";
  EXPECT_TRUE(Node(3).HasItself(Key(4)));
  const auto found = Node(3).Exist(kSlot, {Key(5), "another"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.at(Key(5)), Value(5).size());
  Node(2).CopyAll();
  EXPECT_EQ(There(3, 10), 1) << "not before its time";
  Repair(2);
  EXPECT_EQ(There(3, 10), 10);
  EXPECT_EQ(Metrics(2).repaired.value(), 9) << "what is there is not sent";
}

TEST_F(CopiesTest, ANewHolderIsFilledAndTheOldOneLetsGo) {
  Begin(10, 3);
  Node(1).CopyAll();
  ASSERT_NO_FATAL_FAILURE(Move({1, 2, 3}, 1, {3}));
  EXPECT_EQ(There(2, 10), 0) << "its memory is others'";
  EXPECT_EQ(Node(2).GetCopy(kSlot, Key(0)).status, WireStatus::kWrongOwner);
  Repair(1);
  EXPECT_EQ(There(3, 10), 10);
  EXPECT_EQ(There(1, 10), 10);
  EXPECT_EQ(Metrics(1).repairs.value(), 1);
}

TEST_F(CopiesTest, AHolderThatComesBackEmptyIsFilled) {
  Begin(10);
  Node(1).CopyAll();
  Start(2);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1, {2}));
  EXPECT_EQ(There(2, 10), 0);
  Repair(1);
  EXPECT_EQ(There(2, 10), 10);
}

TEST_F(CopiesTest, AnOwnerThatComesBackEmptyIsFilledByItsHolder) {
  Begin(10);
  Node(1).CopyAll();
  Repair(2);
  Start(1);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1, {2}));
  EXPECT_EQ(Node(1).Get(kSlot, Key(2)).value, Value(2)) << "as asked for";
  Repair(2);
  EXPECT_EQ(There(1, 10), 10);
}

TEST_F(CopiesTest, AnOwnerThatComesBackBeforeTheFirstRepairIsFilled) {
  Start(1);
  Start(2);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1));  // no namespace has replicas yet
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1, {2}));
  PutAll(1, 10);
  Node(1).CopyAll();
  Start(1);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1, {2}));
  Repair(2);
  EXPECT_EQ(There(1, 10), 10);
}

TEST_F(CopiesTest, WhatTheQueueHasNoRoomForARepairFinds) {
  queue_max_ = 4;
  Begin(20);
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 20), 4);
  EXPECT_EQ(Metrics(1).overflows.value(), 16);
  Repair(1);
  EXPECT_EQ(There(2, 20), 20);
  EXPECT_EQ(Metrics(1).repaired.value(), 16);
}

TEST_F(CopiesTest, ARemoveReachesTheCopyBehindWhatWasQueued) {
  Begin(3);
  ASSERT_EQ(Node(1).Remove(kSlot, Key(0)), WireStatus::kOk);
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 3), 2) << "never sent";
  ASSERT_EQ(Node(1).Remove(kSlot, Key(1)), WireStatus::kOk);
  EXPECT_EQ(There(2, 3), 2);
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 3), 1);
  EXPECT_EQ(Metrics(1).removes.value(), 1);
  Repair(1);
  EXPECT_EQ(There(2, 3), 1);
}

TEST_F(CopiesTest, AHolderRefusesWritesOfClients) {
  Begin(1);
  EXPECT_EQ(Node(2).Put(kSlot, "mine", "value", false), WireStatus::kWrongOwner);
  EXPECT_EQ(Node(2).Remove(kSlot, Key(0)), WireStatus::kWrongOwner);
}

TEST_F(CopiesTest, AValueThatIsDamagedInMemoryIsCopiedToNobody) {
  Begin(2);
  {
    const ObjectPin pin = Node(1).dram().Get(ForwardNode::kNs, Key(1), false);
    auto* const byte = const_cast<std::byte*>(pin.value().data());
    *byte ^= std::byte{1};
  }
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 2), 1);
  EXPECT_FALSE(Node(1).HasItself(Key(1))) << "nor is it kept";
}

TEST_F(CopiesTest, FewerReplicasTakeTheirCopies) {
  Begin(5);
  Node(1).CopyAll();
  Node(2).Know({ForwardNode::kNs}, true, 1);
  EXPECT_EQ(There(2, 5), 0);
}

TEST_F(CopiesTest, MoreReplicasBringThem) {
  replicas_ = 1;
  Begin(5);
  Node(1).Know({ForwardNode::kNs}, true, 2);
  Node(2).Know({ForwardNode::kNs}, true, 2);
  Node(1).CopyAll();
  EXPECT_EQ(There(2, 5), 0);
  Repair(1);
  EXPECT_EQ(There(2, 5), 5);
}

TEST_F(CopiesTest, ADeletedNamespacesCopiesGoAndItsNextOneHasNone) {
  Begin(5);
  Node(1).CopyAll();
  constexpr NamespaceRef kNext{ForwardNode::kNs.id, ForwardNode::kNs.generation + 1};
  Node(2).Know({kNext}, true, 2);
  EXPECT_EQ(Node(2).dram().Usage().front().objects, 0U);
  PutAll(1, 5);
  Node(1).CopyAll();  // of the one that node 2 does not know any more
  EXPECT_EQ(Node(2).dram().Usage().front().objects, 0U);
}

TEST_F(CopiesTest, AHolderThatCannotBeReachedIsFilledLater) {
  Begin(0);
  const auto two = view_;
  Kill(2);
  PutAll(1, 5);
  Node(1).CopyAll();
  Start(2);
  ASSERT_NO_FATAL_FAILURE(Move({1, 2}, 1, {2}));
  Repair(1);
  EXPECT_EQ(There(2, 5), 5);
}

}  // namespace
}  // namespace ems::server
