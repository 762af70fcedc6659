#include "cluster/packed_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ems {
namespace {

HeldSlot Held(uint16_t slot, uint32_t owner, uint64_t age = 0) {
  return {SlotId(slot), NodeId(owner), age};
}

TEST(PackedSlotsTest, ComeBackInOrderOfOwnerAgeAndSlot) {
  const std::string packed =
      PackSlots({Held(9, 2), Held(16383, 1, 3), Held(0, 2), Held(5, 1), Held(7, 0, 1)});
  EXPECT_EQ(*UnpackSlots(packed),
            (std::vector<HeldSlot>{Held(7, 0, 1), Held(5, 1), Held(16383, 1, 3), Held(0, 2),
                                   Held(9, 2)}));
  EXPECT_TRUE(UnpackSlots(PackSlots({}))->empty());
}

// The layout is the wire's: owner, age, count, gaps.
TEST(PackedSlotsTest, TheBytesAreThese) {
  EXPECT_EQ(PackSlots({Held(3, 300, 1), Held(200, 300, 1)}),
            (std::string{'\xac', 2, 1, 2, 3, '\xc5', 1}));
}

TEST(PackedSlotsTest, SlotsOfOneOwnerTakeTwoBytesEach) {
  std::vector<HeldSlot> slots;
  for (uint16_t i = 0; i < 16; ++i)
    slots.push_back(Held(static_cast<uint16_t>(i * 1000 + 500), 900));
  EXPECT_LE(PackSlots(slots).size(), 4u + 2 * 16);
}

TEST(PackedSlotsTest, AllSlotsWithRandomOwnersSurvive) {
  std::mt19937 random(7);
  std::vector<HeldSlot> slots;
  for (uint16_t i = 0; i < kSlotCount; ++i)
    slots.push_back(
        Held(i, static_cast<uint32_t>(random() % 1000), uint64_t{random()} << (random() % 8)));
  std::vector<HeldSlot> back = *UnpackSlots(PackSlots(slots));
  std::sort(back.begin(), back.end(),
            [](const HeldSlot& a, const HeldSlot& b) { return a.slot < b.slot; });
  EXPECT_EQ(back, slots);
}

TEST(PackedSlotsTest, OtherBytesAreRefused) {
  const auto refused = [](const std::string& bytes) {
    return UnpackSlots(bytes).status().code() == StatusCode::kInvalidArgument;
  };
  const std::string good = PackSlots({Held(3, 1), Held(9, 1)});
  for (size_t bytes = 1; bytes < good.size(); ++bytes)
    EXPECT_TRUE(refused(good.substr(0, bytes))) << bytes << " bytes";
  EXPECT_TRUE(refused({1, 0, 0})) << "no slot";
  EXPECT_TRUE(refused({1, 0, 2, 3, 0})) << "a slot twice";
  EXPECT_TRUE(refused(std::string{1, 0, 1} + "\x80\x80\x01")) << "slot 16384";
  EXPECT_TRUE(refused(std::string{1, 0, 2} + "\xff\x7f" + '\x01')) << "one behind the last";
  EXPECT_TRUE(refused("\x80\x80\x80\x80\x10" + std::string{0, 1, 3})) << "owner 2^32";
  EXPECT_TRUE(refused(std::string(11, '\xff'))) << "a number without end";
  std::vector<HeldSlot> all;
  for (uint16_t i = 0; i < kSlotCount; ++i) all.push_back(Held(i, 1));
  EXPECT_TRUE(refused(PackSlots(all) + std::string{2, 0, 1, 3})) << "more than there are";
}

}  // namespace
}  // namespace ems
