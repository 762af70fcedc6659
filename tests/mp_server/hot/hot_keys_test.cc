// What must hold: what is read is counted and told what is known; what is removed is heard of while
// it has copies.
#include "mp_server/hot/hot_keys.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

class HotKeysTest : public ForwardTest {
 protected:
  static constexpr uint64_t kLarge = ReadSketch::kCountedBytes;
  HotKeysTest() {
    immutable_ = true;
    Start(1);
    Move({1}, 1);
    objects_ = Node(1).store().Open(ForwardNode::kNs);
  }
  uint8_t Read(const std::string& key, uint64_t bytes = kLarge) {
    return keys_->OnRead(objects_, ForwardNode::kNs, kSlot, key, bytes);
  }
  void Show(const std::string& key, uint8_t hint) {
    const std::vector<CopyHints::Hint> hints = {{ForwardNode::kNs, KeyHash(key), hint}};
    keys_->hints().Show(hints);
  }

  TieredNamespace objects_;
  const std::unique_ptr<HotKeys> keys_ = std::make_unique<HotKeys>();
};

TEST_F(HotKeysTest, ReadsAreCountedAndTold) {
  EXPECT_EQ(Read("a"), 0);
  Show("a", 0x25);
  EXPECT_EQ(Read("a"), 0x25);
  EXPECT_EQ(Read("a", 10), 0x25) << "told, though it may not be counted";
  EXPECT_EQ(Read("b"), 0);
  (void)keys_->sketch().Take();
  (void)Read("b");
  uint64_t reads = 0;
  for (const ReadCount& count : keys_->sketch().Take()) reads += count.key == "a" ? count.reads : 0;
  EXPECT_GE(reads, 2U);
}

TEST_F(HotKeysTest, RemovesOfKeysWithCopiesAreHeardOfOnce) {
  keys_->OnRemoved(objects_, ForwardNode::kNs, kSlot, "a");
  EXPECT_TRUE(keys_->TakeRemoved().empty());
  Show("a", 0x25);
  keys_->OnRemoved(objects_, ForwardNode::kNs, kSlot, "b");
  keys_->OnRemoved(objects_, ForwardNode::kNs, kSlot, "a");
  const auto removed = keys_->TakeRemoved();
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0].key, "a");
  EXPECT_EQ(removed[0].slot, kSlot);
  EXPECT_TRUE(keys_->TakeRemoved().empty());
}

TEST_F(HotKeysTest, RemovesBeyondTheBoundAreLeftToTheirTime) {
  Show("a", 0x25);
  for (size_t i = 0; i < HotKeys::kRemovedMost + 10; ++i)
    keys_->OnRemoved(objects_, ForwardNode::kNs, kSlot, "a");
  EXPECT_EQ(keys_->TakeRemoved().size(), HotKeys::kRemovedMost);
}

}  // namespace
}  // namespace ems::server
