#include "mp_server/store/owned_slots.h"

#include <gtest/gtest.h>

namespace ems::server {
namespace {

TEST(OwnedSlotsTest, HasExactlyWhatWasSetLast) {
  OwnedSlots owned;
  EXPECT_FALSE(owned.Has(0));
  std::bitset<kSlotCount> slots;
  for (const size_t slot : {size_t{0}, size_t{63}, size_t{64}, size_t{kSlotCount - 1}})
    slots.set(slot);
  owned.Set(slots);
  for (size_t slot = 0; slot < kSlotCount; ++slot)
    ASSERT_EQ(owned.Has(static_cast<uint16_t>(slot)), slots[slot]) << slot;
  owned.Set({});
  EXPECT_FALSE(owned.Has(63));
}

TEST(OwnedSlotsTest, CountsHowOftenASlotWasLost) {
  OwnedSlots owned;
  std::bitset<kSlotCount> both, one;
  both.set(63), both.set(64);
  one.set(63);
  owned.Set(both);
  EXPECT_TRUE(owned.HasSince(64, 0));
  owned.Set(one);
  EXPECT_EQ(owned.losses(64), 1U);
  EXPECT_FALSE(owned.HasSince(64, 1)) << "it is not owned";
  owned.Set(both);
  EXPECT_FALSE(owned.HasSince(64, 0));
  EXPECT_TRUE(owned.HasSince(64, 1));
  EXPECT_TRUE(owned.HasSince(63, 0)) << "another one";
}

}  // namespace
}  // namespace ems::server
