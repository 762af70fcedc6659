// What must hold: it is the same whether a value is looked at at once or in parts, and no part is
// longer than it may be.
#include "mp_server/value_check.h"

#include <gtest/gtest.h>

#include <bitset>
#include <cstring>
#include <string>

#include "mp_server/store/object_store.h"
#include "tests/support/self_verifying.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

class ValueCheckTest : public SmallTierTest {
 protected:
  ValueCheckTest() : SmallTierTest("value_check") {
    dram_->SetOwnedSlots(std::bitset<kSlotCount>().set());
  }
  ObjectPin Stored(const std::string& value) {
    Result<Reservation> room = dram_->Reserve(kNs, SlotId(1), "k", value.size());
    EXPECT_TRUE(room.ok()) << room.status();
    std::memcpy(room->value().data(), value.data(), value.size());
    HashPieces(AsBytes(value), room->piece_sums());
    bool stored = false;
    EXPECT_TRUE(ObjectStore::Publish(*std::move(room), Checksum(AsBytes(value)), {}, &stored).ok());
    return dram_->Get(kNs, "k", false);
  }
};

TEST_F(ValueCheckTest, LooksAtNoMoreThanItMay) {
  const std::string value = testing::MakeValue("kv", "k", 1, 3 * kPieceBytes + 5);
  ValueCheck check(Stored(value));
  uint64_t turns = 0;
  for (uint64_t left = 1000; !check.GoOn(&left); left = 1000, ++turns) ASSERT_EQ(left, 0U);
  EXPECT_EQ(turns, value.size() / 1000);
  EXPECT_TRUE(check.Intact());
  EXPECT_EQ(AsText(check.pin().value()), value);
}

TEST_F(ValueCheckTest, FindsAFlippedBitWhereverTheTurnsEnd) {
  const std::string value = testing::MakeValue("kv", "k", 1, 2 * kPieceBytes);
  ObjectPin pin = Stored(value);
  *const_cast<std::byte*>(pin.value().data() + kPieceBytes + 7) ^= std::byte{1};
  for (const uint64_t turn : {kPieceBytes + 7, 5 * kPieceBytes}) {
    ValueCheck check(pin.Share());
    for (uint64_t left = turn; !check.GoOn(&left); left = turn) {
    }
    EXPECT_FALSE(check.Intact()) << turn;
  }
}

TEST_F(ValueCheckTest, AnEmptyValueIsIntactAtOnce) {
  ValueCheck check(Stored(""));
  uint64_t none = 0;
  EXPECT_TRUE(check.GoOn(&none));
  EXPECT_TRUE(check.Intact());
}

}  // namespace
}  // namespace ems::server
