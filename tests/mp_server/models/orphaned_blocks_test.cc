// What must hold: what is kept is there until it is taken, its time is over or its memory is
// needed, and its memory is free then.
#include "mp_server/models/orphaned_blocks.h"

#include <gtest/gtest.h>

#include "common/checksum.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

using std::chrono::seconds;

constexpr NamespaceRef kOther{NamespaceId(2), 1};

class OrphanedBlocksTest : public SmallTierTest {
 protected:
  OrphanedBlocksTest() : SmallTierTest("kept") {
    std::bitset<kSlotCount> all;
    dram_->SetOwnedSlots(all.set());
  }
  ObjectPin Put(const std::string& key) {
    auto reserved = dram_->Reserve(kNs, SlotId(5), key, 100'000);
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    HashPieces(reserved->value(), reserved->piece_sums());
    const uint64_t sum = CombinePieces(reserved->piece_sums());
    bool stored = false;
    ObjectPin pin;
    EXPECT_TRUE(ObjectStore::Publish(*std::move(reserved), sum, {.pin = &pin}, &stored).ok());
    return pin;
  }
  // Nothing is owned any more.
  void LoseSlots() { dram_->SetOwnedSlots({}); }
  uint64_t UsedBytes() const { return dram_->Usage()[0].value_bytes; }

  ManualClock clock_;
  OrphanedBlocks orphans_{&clock_};
};

TEST_F(OrphanedBlocksTest, WhatIsKeptOutlivesItsSlotAndIsTakenOnce) {
  orphans_.Keep(kNs, Put("a"));
  LoseSlots();
  EXPECT_FALSE(dram_->Get(kNs, "a", false)) << "nobody is given it";
  EXPECT_FALSE(orphans_.Take(kNs, "b"));
  EXPECT_FALSE(orphans_.Take(kOther, "a"));
  {
    const ObjectPin pin = orphans_.Take(kNs, "a");
    ASSERT_TRUE(pin);
    EXPECT_EQ(pin.value().size(), 100'000U);
  }
  EXPECT_FALSE(orphans_.Take(kNs, "a"));
  EXPECT_EQ(UsedBytes(), 0U);
}

TEST_F(OrphanedBlocksTest, WhatIsInTheStoreIsKept) {
  { const ObjectPin pin = Put("a"); }
  orphans_.Keep(dram_.get(), {{kNs, "a"}, {kNs, "b"}, {kOther, "a"}});
  LoseSlots();
  EXPECT_TRUE(orphans_.Take(kNs, "a"));
  EXPECT_FALSE(orphans_.Clear()) << "nothing else was there";
}

TEST_F(OrphanedBlocksTest, GoesAfterItsTime) {
  orphans_.Keep(kNs, Put("a"));
  clock_.Advance(seconds(1));
  orphans_.Keep(kNs, Put("b"));
  LoseSlots();
  clock_.Advance(OrphanedBlocks::kKeepFor - seconds(1));
  orphans_.DropOld();
  EXPECT_FALSE(orphans_.Take(kNs, "a"));
  EXPECT_EQ(UsedBytes(), 100'000U);
  EXPECT_TRUE(orphans_.Take(kNs, "b"));
}

TEST_F(OrphanedBlocksTest, GoesWhenItsMemoryIsNeeded) {
  EXPECT_FALSE(orphans_.Clear());
  orphans_.Keep(kNs, Put("a"));
  orphans_.Keep(kNs, Put("b"));
  LoseSlots();
  EXPECT_TRUE(orphans_.Clear());
  EXPECT_EQ(UsedBytes(), 0U);
  EXPECT_FALSE(orphans_.Clear());
}

}  // namespace
}  // namespace ems::server
