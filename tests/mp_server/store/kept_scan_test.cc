// What must hold: pages together name each key that is kept for the era, once, namespace by
// namespace, and nothing for another era or by a cursor that is none.
#include "mp_server/store/kept_scan.h"

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

class KeptScanTest : public ForwardTest {
 protected:
  static constexpr NamespaceRef kOther{NamespaceId(7), 2};
  void Begin() {
    Start(1);
    Start(2);
    Node(1).Know({ForwardNode::kNs, kOther});
    Move({1, 2}, 1);
    for (int i = 0; i < 10; ++i) {
      clock_.Advance(std::chrono::milliseconds(1));
      const NamespaceRef ns = i % 2 == 0 ? ForwardNode::kNs : kOther;
      ASSERT_EQ(Node(1).PutIn(ns, kSlot, "k" + std::to_string(i), std::string(10, 'v')),
                wire::WireStatus::kOk);
    }
    ASSERT_EQ(Node(1).Put(SlotId(3), "stays", "v"), wire::WireStatus::kOk);
    Move({1, 2}, 2);
  }
  wire::KeptPage Page(const wire::ScanCursor& cursor, uint32_t keys, Era of) {
    return ScanKept(Node(1).dram(), kSlot,
                    {.era = {of.history, of.since}, .cursor = cursor, .items_max = keys});
  }
  std::vector<std::string> All(uint32_t keys) {
    std::vector<std::string> all;
    wire::ScanCursor cursor = wire::kScanBegin;
    for (int pages = 0; pages < 20; ++pages) {
      const wire::KeptPage page = Page(cursor, keys, era());
      for (const auto& one : page.keys.keys)
        all.push_back(std::to_string(page.ns().id.value()) + one.key);
      if (!page.keys.next) return all;
      cursor = *page.keys.next;
    }
    ADD_FAILURE() << "it does not end";
    return all;
  }
};

TEST_F(KeptScanTest, EachKeyComesOnceInTheOrderOfUse) {
  Begin();
  const std::vector<std::string> all{"1k8", "1k6", "1k4", "1k2", "1k0",
                                     "7k9", "7k7", "7k5", "7k3", "7k1"};
  for (const uint32_t keys : {1U, 2U, 5U, 100U}) EXPECT_EQ(All(keys), all) << keys;
}

TEST_F(KeptScanTest, WhatGoesMeanwhileIsNotMissed) {
  Begin();
  const wire::KeptPage first = Page(wire::kScanBegin, 2, era());
  ASSERT_TRUE(first.keys.next.has_value());
  Node(1).Know({kOther});
  const wire::KeptPage next = Page(*first.keys.next, 100, era());
  EXPECT_EQ(next.ns(), kOther);
  EXPECT_EQ(next.keys.keys.size(), 5U);
  EXPECT_FALSE(next.keys.next);
}

TEST_F(KeptScanTest, AnotherEraHasNothing) {
  Begin();
  EXPECT_TRUE(Page(wire::kScanBegin, 100, {kHistory, era().since - 1}).keys.keys.empty());
  EXPECT_TRUE(Page(wire::kScanBegin, 100, {kHistory + 1, era().since}).keys.keys.empty());
  clock_.Advance(ForwardNode::kKeepFor);
  const wire::KeptPage late = Page(wire::kScanBegin, 100, era());
  EXPECT_TRUE(late.keys.keys.empty());
  EXPECT_FALSE(late.keys.next);
}

TEST_F(KeptScanTest, ACursorThatIsNoneEndsOrGoesOnSomewhere) {
  Begin();
  EXPECT_TRUE(Page({UINT64_MAX, 1, 1}, 100, era()).keys.keys.empty());
  EXPECT_EQ(Page({7, 0, 0}, 100, era()).keys.keys.size(), 0U);
  EXPECT_EQ(Page({3, UINT64_MAX, 5}, 100, era()).ns(), kOther);
}

TEST_F(KeptScanTest, WhoHeldTheSlotAllTheTimeSaysWhoElseKeepsSomething) {
  Begin();
  EXPECT_EQ(Page(wire::kScanBegin, 1, era()).head.node, 0U) << "it does not know the time before";
  const Era first = era();
  Move({1, 2}, 1);
  const wire::KeptPage page = ScanKept(Node(2).dram(), kSlot, {.era = {kHistory, era().since}});
  EXPECT_EQ(page.head.node, 1U);
  EXPECT_EQ(page.head.since, first.since);
}

}  // namespace
}  // namespace ems::server
