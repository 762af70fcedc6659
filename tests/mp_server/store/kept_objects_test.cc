// What must hold: what is kept is found by its key alone, goes in the order in which it was used,
// and is handed out once.
#include "mp_server/store/kept_objects.h"

#include <gtest/gtest.h>

#include <deque>

#include "common/object_key.h"

namespace ems::server {
namespace {

class KeptObjectsTest : public ::testing::Test {
 protected:
  ObjectEntry* Make(const std::string& key, int64_t used_ns, uint16_t slot = 1) {
    keys_.push_back(key);
    ObjectEntry& entry = entries_.emplace_back();
    entry.hash = KeyHash(key);
    entry.key_data = reinterpret_cast<std::byte*>(keys_.back().data());
    entry.key_bytes = static_cast<uint16_t>(key.size());
    entry.value_bytes = 10;
    entry.slot = slot;
    entry.generation = entries_.size();
    entry.touched_ns = used_ns;
    entry.holds = 1;
    return &entry;
  }

  std::deque<std::string> keys_;
  std::deque<ObjectEntry> entries_;
  KeptObjects kept_;
};

TEST_F(KeptObjectsTest, IsFoundByItsKeyWithAPin) {
  ObjectEntry* const entry = Make("k", 5);
  EXPECT_EQ(kept_.Add(entry), nullptr);
  EXPECT_EQ(kept_.Find(KeyHash("k"), "k"), entry);
  EXPECT_EQ(entry->holds, 2U);
  EXPECT_EQ(kept_.Find(KeyHash("k"), "other"), nullptr) << "the hash of another key";
  EXPECT_EQ(kept_.Find(KeyHash("other"), "other"), nullptr);
  EXPECT_EQ(kept_.totals().objects, 1U);
  EXPECT_EQ(kept_.totals().value_bytes, 10U);
}

TEST_F(KeptObjectsTest, TheColdestGoesFirst) {
  ObjectEntry* const warm = Make("warm", 9);
  ObjectEntry* const cold = Make("cold", 3);
  EXPECT_EQ(kept_.Add(warm), nullptr);
  EXPECT_EQ(kept_.Add(cold), nullptr);
  EXPECT_EQ(kept_.TakeColdest(), cold);
  EXPECT_EQ(kept_.TakeColdest(), warm);
  EXPECT_EQ(kept_.TakeColdest(), nullptr);
  EXPECT_EQ(kept_.totals().value_bytes, 0U);
}

TEST_F(KeptObjectsTest, TheLaterOfTwoWithOneHashStays) {
  ObjectEntry* const first = Make("k", 5);
  ObjectEntry* const second = Make("k", 6);
  EXPECT_EQ(kept_.Add(first), nullptr);
  EXPECT_EQ(kept_.Add(second), first);
  EXPECT_EQ(kept_.Find(KeyHash("k"), "k"), second);
  EXPECT_EQ(kept_.totals().objects, 1U);
}

TEST_F(KeptObjectsTest, AVictimIsTakenIfItIsTheOne) {
  ObjectEntry* const entry = Make("k", 5);
  EXPECT_EQ(kept_.Add(entry), nullptr);
  Victim victim = MakeVictim(entry);
  ++victim.generation;
  EXPECT_EQ(kept_.Take(victim), nullptr);
  EXPECT_EQ(kept_.Take(MakeVictim(entry)), entry);
  EXPECT_EQ(kept_.Take(MakeVictim(entry)), nullptr);
}

TEST_F(KeptObjectsTest, ASlotIsListedFromTheLastUsedOn) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(kept_.Add(Make("k" + std::to_string(i), 10 + i)), nullptr);
  EXPECT_EQ(kept_.Add(Make("other", 99, 2)), nullptr);
  std::vector<KeptObjects::Listed> listed;
  const KeptObjects::Age all{INT64_MAX, 0};
  EXPECT_FALSE(kept_.ListSlot(SlotId(1), all, 3, 1000, &listed));
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed.front().key, "k4");
  EXPECT_EQ(listed.back().key, "k2");
  EXPECT_TRUE(kept_.ListSlot(SlotId(1), listed.back().age, 3, 1000, &listed));
  EXPECT_EQ(listed.size(), 5U);
  EXPECT_EQ(listed.back().key, "k0");
  listed.clear();
  EXPECT_FALSE(kept_.ListSlot(SlotId(1), all, 10, 3, &listed));
  EXPECT_EQ(listed.size(), 2U) << "as many as fit, and one";
  (void)kept_.TakeColdest();
  listed.clear();
  EXPECT_TRUE(kept_.ListSlot(SlotId(1), all, 10, 1000, &listed));
  EXPECT_EQ(listed.size(), 4U);
  EXPECT_TRUE(kept_.ListSlot(SlotId(3), all, 10, 1000, &listed));
}

TEST_F(KeptObjectsTest, SlotsAreTakenTogether) {
  ObjectEntry* const one = Make("a", 5, 1);
  ObjectEntry* const other = Make("b", 6, 2);
  EXPECT_EQ(kept_.Add(one), nullptr);
  EXPECT_EQ(kept_.Add(other), nullptr);
  std::bitset<kSlotCount> slots;
  slots.set(2);
  EXPECT_EQ(kept_.TakeSlots(slots), std::vector{other});
  EXPECT_EQ(kept_.TakeAll(), std::vector{one});
  EXPECT_EQ(kept_.totals().objects, 0U);
}

}  // namespace
}  // namespace ems::server
