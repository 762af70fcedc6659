// What must hold: what cannot be a history is refused; it says what it was made of.
#include "cluster/slot_history.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

constexpr uint64_t kId = 77;

TEST(SlotHistoryTest, SaysWhatItWasMadeOf) {
  EXPECT_FALSE(SlotHistory().known());
  std::vector<uint64_t> since(kSlotCount, 4);
  since[9] = 2;
  const SlotHistory history = *SlotHistory::Make(kId, since, 4);
  EXPECT_TRUE(history.known());
  EXPECT_EQ(history.id(), kId);
  EXPECT_EQ(history.since(SlotId(9)), 2u);
  EXPECT_EQ(history.since(SlotId(8)), 4u);
}

TEST(SlotHistoryTest, WhatCannotBeIsRefused) {
  const std::vector<uint64_t> good(kSlotCount, 4);
  EXPECT_TRUE(SlotHistory::Make(kId, good, 4).ok());
  EXPECT_FALSE(SlotHistory::Make(kId, good, 3).ok()) << "later than its view";
  EXPECT_FALSE(SlotHistory::Make(0, good, 4).ok());
  EXPECT_FALSE(SlotHistory::Make(kId, std::vector<uint64_t>(kSlotCount - 1), 4).ok());
}

}  // namespace
}  // namespace ems
