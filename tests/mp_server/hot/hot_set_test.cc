// What must hold: what is read enough gets its copies, once each, and keeps them as long as it is
// read; what is told of a copy is true until the time that was told; nothing grows.
#include "mp_server/hot/hot_set.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/object_key.h"
#include "proto/copy_hint.h"

namespace ems::server {
namespace {

using std::chrono::seconds;

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr NodeId kSelf{1};
constexpr TimePoint kStart{seconds(1000)};

ReadCount CountOf(const std::string& key, uint64_t reads, uint64_t bytes = 0) {
  return {.ns = kNs,
          .slot = SlotId(3),
          .key = key,
          .hash = KeyHash(key),
          .reads = reads,
          .bytes = bytes};
}

std::shared_ptr<const DhtView> ViewOf(uint32_t nodes, uint32_t owner = 1, uint64_t epoch = 1) {
  std::vector<NodeInfo> infos(nodes);
  for (uint32_t i = 0; i < nodes; ++i) infos[i].id = NodeId(i + 1);
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
  return *DhtView::Make({1, epoch}, infos, slots, false);
}

class HotSetTest : public ::testing::Test {
 protected:
  // A second of reads.
  void Second(const std::vector<ReadCount>& counts) {
    now_ += seconds(1);
    set_.Count(counts, seconds(1), now_);
    set_.Follow(*view_, kSelf);
  }
  // Sends all that is wanted now; how much.
  size_t SendAll(bool kept = true) {
    size_t sent = 0;
    while (const auto wanted = set_.Next(now_)) {
      if (++sent > 1000) break;
      set_.OnSent(*wanted, now_, kept);
    }
    return sent;
  }
  wire::CopyHint HintOf(const std::string& key) const {
    for (const auto& hint : set_.Hints(now_)) {
      if (hint.hash == KeyHash(key)) return wire::CopyHint::Unpack(hint.packed);
    }
    return {};
  }

  TimePoint now_ = kStart;
  std::shared_ptr<const DhtView> view_ = ViewOf(5);
  HotSet set_{{.reads_per_s = 500, .bytes_per_s = 1e8}};
};

TEST_F(HotSetTest, ReadsOrBytesMakeAKeyHotAndItGetsThreeCopies) {
  Second(
      {CountOf("cold", 499, 99'000'000), CountOf("often", 500), CountOf("large", 3, 100'000'000)});
  EXPECT_EQ(set_.size(), 2U);
  EXPECT_EQ(SendAll(), 6U);
  EXPECT_EQ(set_.CountCopies(now_), 6U);
  for (const char* key : {"often", "large"}) {
    EXPECT_EQ(HintOf(key).holders, 7) << key;
    EXPECT_EQ(HintOf(key).seconds, 18U) << key;
  }
  EXPECT_EQ(HintOf("cold"), wire::CopyHint());
  EXPECT_EQ(SendAll(), 0U) << "each once";
}

TEST_F(HotSetTest, CopiesGoWhereHotHoldersSays) {
  Second({CountOf("hot", 900)});
  std::set<NodeId> wanted, sent;
  for (const NodeId node : HotHolders::Of(*view_, SlotId(3), KeyHash("hot").lo).nodes)
    wanted.insert(node);
  while (const auto one = set_.Next(now_)) {
    EXPECT_TRUE(sent.insert(one->node).second);
    EXPECT_EQ(one->key.key, "hot");
    set_.OnSent(*one, now_, true);
  }
  EXPECT_EQ(sent, wanted);
}

TEST_F(HotSetTest, CopiesAreSentAgainWhileTheKeyIsHotAndEndWhenItIsNot) {
  Second({CountOf("hot", 900)});
  EXPECT_EQ(SendAll(), 3U);
  size_t again = 0;
  for (int i = 0; i < 40; ++i) {
    Second({CountOf("hot", 900)});
    again += SendAll();
    EXPECT_EQ(HintOf("hot").holders, 7) << i;
  }
  EXPECT_EQ(again, 12U) << "at half their time";
  for (int i = 0; i < 9; ++i) Second({});
  EXPECT_EQ(set_.size(), 1U) << "a pause of some seconds";
  for (int i = 0; i < 2; ++i) Second({});
  EXPECT_EQ(set_.size(), 0U);
  EXPECT_EQ(SendAll(), 0U);
  EXPECT_TRUE(set_.Hints(now_).empty());
}

TEST_F(HotSetTest, WhatCopiesAnswerKeepsAKeyHotThatItsOwnerIsAskedLessFor) {
  Second({CountOf("hot", 900)});
  EXPECT_EQ(SendAll(), 3U);
  for (int i = 0; i < 30; ++i) {
    Second({CountOf("hot", 225)});
    SendAll();
  }
  EXPECT_EQ(set_.size(), 1U);
  for (int i = 0; i < 11; ++i) Second({CountOf("hot", 50)});
  EXPECT_EQ(set_.size(), 0U);
}

TEST_F(HotSetTest, AHintIsTrueForAsLongAsItSays) {
  Second({CountOf("hot", 900)});
  SendAll();
  const TimePoint ends = now_ + seconds(20);
  for (int i = 0; i < 8; ++i) {
    Second({});
    const wire::CopyHint hint = HintOf("hot");
    if (hint.holders == 0) continue;
    EXPECT_LE(now_ + seconds(hint.seconds) + HotSet::kMargin, ends);
  }
}

TEST_F(HotSetTest, AServerThatDoesNotTakeACopyIsLeftAloneForAWhileAndNotToldOf) {
  Second({CountOf("hot", 900)});
  const auto first = set_.Next(now_);
  ASSERT_TRUE(first);
  set_.OnSent(*first, now_, false);
  EXPECT_EQ(SendAll(), 2U);
  EXPECT_EQ(set_.CountCopies(now_), 2U);
  EXPECT_NE(HintOf("hot").holders, 7);
  for (int i = 0; i < 4; ++i) Second({CountOf("hot", 900)});
  EXPECT_FALSE(set_.Next(now_));
  Second({CountOf("hot", 900)});
  EXPECT_EQ(SendAll(), 1U);
  EXPECT_EQ(HintOf("hot").holders, 7);
}

TEST_F(HotSetTest, ANewViewHasAllCopiesSentAgainAndAKeyOfAnotherOwnerForgotten) {
  Second({CountOf("hot", 900)});
  SendAll();
  view_ = ViewOf(9, 1, 2);
  Second({CountOf("hot", 900)});
  EXPECT_EQ(set_.CountCopies(now_), 0U) << "they went as the view was installed";
  EXPECT_TRUE(set_.Hints(now_).empty());
  EXPECT_EQ(SendAll(), 3U);
  view_ = ViewOf(9, 2, 3);
  Second({CountOf("hot", 900)});
  EXPECT_EQ(set_.size(), 0U);
}

TEST_F(HotSetTest, OnlyTheHottestKeysAreKept) {
  std::vector<ReadCount> counts;
  for (int i = 0; i < 200; ++i)
    counts.push_back(CountOf(std::to_string(i), 1000 + static_cast<uint64_t>(i)));
  Second(counts);
  EXPECT_EQ(set_.size(), HotSet::kKeys);
  EXPECT_EQ(set_.Next(now_)->key.key, "199");
}

TEST_F(HotSetTest, WhatIsForgottenIsNotSentAndNotToldOf) {
  Second({CountOf("hot", 900)});
  SendAll();
  set_.Forget({.ns = kNs, .slot = SlotId(3), .key = "hot", .hash = KeyHash("hot")});
  EXPECT_TRUE(set_.Hints(now_).empty());
  EXPECT_FALSE(set_.Next(now_));
}

TEST_F(HotSetTest, WithoutLimitsNothingIsHot) {
  HotSet off({.reads_per_s = 0, .bytes_per_s = 0});
  const std::vector<ReadCount> counts = {CountOf("a", 1'000'000, uint64_t{1} << 40)};
  off.Count(counts, seconds(1), now_);
  EXPECT_EQ(off.size(), 0U);
}

}  // namespace
}  // namespace ems::server
