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

}  // namespace
}  // namespace ems::server
