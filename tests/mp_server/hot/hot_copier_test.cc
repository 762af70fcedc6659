// What must hold: what many read gets copies on other servers, where it is read by who says that a
// copy will do and by nobody else; it goes when it is not hot, is removed, or moves; nothing else
// is copied, and nothing that is damaged.
#include "mp_server/hot/hot_copier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "proto/copy_hint.h"
#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using wire::WireStatus;

class HotCopierTest : public ForwardTest {
 protected:
  static constexpr double kReadsPerS = 5;

  HotCopierTest() { immutable_ = true; }
  void Begin(uint32_t servers = 4) {
    std::set<uint32_t> shown;
    for (uint32_t i = 1; i <= servers; ++i) {
      Start(i);
      shown.insert(i);
    }
    shown_ = shown;
    ASSERT_NO_FATAL_FAILURE(Move(shown, 1));
    Node(1).SpreadHot(kReadsPerS);
    for (const char* key : {"hot", "cold"})
      ASSERT_EQ(Node(1).Put(kSlot, key, Value(key), /*overwrite=*/false), WireStatus::kOk);
  }
  // Of a size whose reads are all counted.
  static std::string Value(const std::string& key) {
    return key + std::string(ReadSketch::kCountedBytes, key[0]);
  }
  // A second in which "hot" is read so often at its owner, and what follows from it.
  void Second(int reads) {
    for (int i = 0; i < reads; ++i) EXPECT_EQ(Node(1).Get(kSlot, "hot").value, Value("hot"));
    EXPECT_EQ(Node(1).Get(kSlot, "cold").value, Value("cold"));
    clock_.Advance(seconds(1));
    StepAll();
  }
  void StepAll() {
    while (true) {
      const Duration pause = Node(1).copier().Step();
      if (pause >= HotCopier::kLook) return;
      clock_.Advance(pause);
    }
  }
  void MakeHot() {
    for (int i = 0; i < 3; ++i) Second(8);
  }
  int CopiesOf(const std::string& key) {
    int there = 0;
    for (const uint32_t id : shown_) there += id != 1 && Node(id).HasItself(key) ? 1 : 0;
    return there;
  }
  wire::CopyHint Told() { return wire::CopyHint::Unpack(Node(1).Get(kSlot, "hot").copies); }

  std::set<uint32_t> shown_;
};

TEST_F(HotCopierTest, WhatManyReadGetsCopiesAndReadersAreTold) {
  Begin();
  EXPECT_EQ(Told(), wire::CopyHint());
  MakeHot();
  EXPECT_EQ(CopiesOf("hot"), 3);
  EXPECT_EQ(CopiesOf("cold"), 0);
  EXPECT_EQ(Told().holders, 7);
  EXPECT_GE(Told().seconds, 10U);
  EXPECT_EQ(Node(1).Get(kSlot, "cold").copies, 0);
  for (uint32_t id = 2; id <= 4; ++id) {
    EXPECT_EQ(Node(id).GetCopy(kSlot, "hot").value, Value("hot"));
    EXPECT_EQ(Node(id).Get(kSlot, "hot").status, WireStatus::kWrongOwner);
    EXPECT_EQ(Node(id).GetCopy(kSlot, "cold").status, WireStatus::kCopyMiss);
    EXPECT_EQ(Node(id).GetCopy(SlotId(5), "hot").status, WireStatus::kWrongOwner);
    EXPECT_GT(Node(id).Usage().objects, 0U) << "it counts as used";
  }
  EXPECT_EQ(Node(1).metrics().hot().sent.value(), 3);
  EXPECT_EQ(Node(1).metrics().hot().keys.value(), 1);
  EXPECT_EQ(Node(1).metrics().hot().copies.value(), 3);
}

TEST_F(HotCopierTest, FewReadsAreNotSpread) {
  Begin();
  for (int i = 0; i < 5; ++i) Second(4);
  EXPECT_EQ(CopiesOf("hot"), 0);
  EXPECT_EQ(Told(), wire::CopyHint());
}

TEST_F(HotCopierTest, ValuesThatMayChangeHaveNoCopies) {
  immutable_ = false;
  Begin();
  MakeHot();
  EXPECT_EQ(CopiesOf("hot"), 0);
  EXPECT_EQ(Told(), wire::CopyHint());
}

TEST_F(HotCopierTest, CopiesStayWhileTheObjectIsHotAndGoWhenItIsNot) {
  Begin();
  MakeHot();
  for (int i = 0; i < 30; ++i) {
    Second(8);
    for (uint32_t id = 2; id <= 4; ++id) Node(id).hot_guests().Expire();
    ASSERT_EQ(CopiesOf("hot"), 3) << i;
  }
  for (int i = 0; i < 45; ++i) {
    Second(0);
    const wire::CopyHint told =
        wire::CopyHint::Unpack(Node(1).hot_keys().hints().Of(ForwardNode::kNs, KeyHash("hot")));
    for (uint32_t id = 2; id <= 4; ++id) Node(id).hot_guests().Expire();
    EXPECT_TRUE(told.holders == 0 || CopiesOf("hot") == 3) << "a reader is told of them";
  }
  EXPECT_EQ(CopiesOf("hot"), 0);
  EXPECT_EQ(Node(2).GetCopy(kSlot, "hot").status, WireStatus::kWrongOwner);
  EXPECT_EQ(Node(2).hot_guests().size(), 0U);
  EXPECT_EQ(Node(1).Get(kSlot, "hot").value, Value("hot"));
}

TEST_F(HotCopierTest, ARemoveReachesTheCopies) {
  Begin();
  MakeHot();
  ASSERT_EQ(Node(1).Remove(kSlot, "hot"), WireStatus::kOk);
  (void)Node(1).copier().Step();
  EXPECT_EQ(CopiesOf("hot"), 0);
  EXPECT_FALSE(Node(1).hot_keys().hints().any());
}

TEST_F(HotCopierTest, AViewDropsCopiesAndTheOwnerSendsThemAgain) {
  Begin();
  MakeHot();
  ASSERT_NO_FATAL_FAILURE(Move(shown_, 1));
  EXPECT_EQ(CopiesOf("hot"), 0);
  StepAll();
  EXPECT_EQ(CopiesOf("hot"), 3);
}

TEST_F(HotCopierTest, WhoTakesTheSlotOverHasNothingOfWhatItHeldCopiesOf) {
  Begin();
  MakeHot();
  ASSERT_EQ(Node(1).Remove(kSlot, "hot"), WireStatus::kOk);  // no copy has heard of it yet
  EXPECT_EQ(CopiesOf("hot"), 3);
  ASSERT_NO_FATAL_FAILURE(Move(shown_, 2));
  EXPECT_EQ(Node(2).Get(kSlot, "hot").status, WireStatus::kMiss);
}

TEST_F(HotCopierTest, AServerThatIsGoneDoesNotKeepTheOthersFromTheirCopies) {
  Begin();
  Node(3).rpc().Stop(seconds(5));
  MakeHot();
  EXPECT_EQ(CopiesOf("hot"), 2);
  EXPECT_NE(Told().holders, 7);
  EXPECT_GT(Node(1).metrics().hot().failed.value(), 0);
}

TEST_F(HotCopierTest, WhatIsDamagedInMemoryIsNotSent) {
  Begin();
  for (int i = 0; i < 2; ++i) {
    for (int read = 0; read < 8; ++read) (void)Node(1).Get(kSlot, "hot");
    clock_.Advance(seconds(1));
    if (i == 0) (void)Node(1).copier().Step();
  }
  {
    const ObjectPin pin = Node(1).dram().Get(ForwardNode::kNs, "hot", false);
    ASSERT_TRUE(pin);
    const_cast<std::byte&>(pin.value()[1000]) ^= std::byte{4};
  }
  StepAll();
  EXPECT_EQ(CopiesOf("hot"), 0);
  EXPECT_FALSE(Node(1).HasItself("hot"));
}

TEST_F(HotCopierTest, TheRateIsKept) {
  Begin();
  for (int i = 0; i < 2; ++i) {
    for (int read = 0; read < 8; ++read) (void)Node(1).Get(kSlot, "hot");
    (void)Node(1).Get(kSlot, "cold");
    clock_.Advance(seconds(1));
    if (i == 0) (void)Node(1).copier().Step();
  }
  const TimePoint begun = clock_.Now();
  StepAll();
  const double took = std::chrono::duration<double>(clock_.Now() - begun).count();
  ASSERT_EQ(CopiesOf("hot"), 3);
  EXPECT_GE(took, 2 * static_cast<double>(Value("hot").size()) / (64.0 * kMiB) * 0.99);
}

}  // namespace
}  // namespace ems::server
