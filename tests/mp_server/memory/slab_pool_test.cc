#include "mp_server/memory/slab_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

std::unique_ptr<Segment> NewSegment(uint64_t bytes = 2 * kMiB) {
  auto segment = std::make_unique<Segment>();
  segment->memory = std::move(fabric::ShmSegment::Create(bytes, HugePages::kOff)).value();
  return segment;
}

class SlabPoolTest : public ::testing::Test {
 protected:
  // An entry as the index would have it: linked, nobody looks.
  ObjectEntry* Allocate(uint64_t value_bytes) {
    entries_.emplace_back();
    ObjectEntry* entry = &entries_.back();
    entry->holds.store(kLinked);
    entry->value_bytes = value_bytes;
    entry->generation = entries_.size();
    if (!pool_.Allocate(SizeClasses::Get().For(value_bytes, 32), true, entry)) return nullptr;
    return entry;
  }
  SlabPool pool_;
  std::deque<ObjectEntry> entries_;
};

std::unique_ptr<Segment> NumberedSegment(uint32_t id) {
  auto segment = std::make_unique<Segment>();
  segment->id = id;
  segment->memory = std::move(fabric::ShmSegment::CreateSparse(2 * kMiB)).value();
  segment->read_only =
      std::make_shared<const fabric::Fd>(std::move(segment->memory.OpenReadOnly()).value());
  return segment;
}

TEST_F(SlabPoolTest, TheDescriptorOfASegmentIsMadeOnce) {
  pool_.Add(NumberedSegment(1));
  pool_.Add(NumberedSegment(2));
  const auto first = pool_.OpenSegment(2);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->bytes, 2 * kMiB);
  EXPECT_EQ(first->fd, pool_.OpenSegment(2)->fd);
  EXPECT_NE(first->fd, pool_.OpenSegment(1)->fd);
  EXPECT_EQ(pool_.OpenSegment(3).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(pool_.TakeEmpty(0).size(), 2u);
  EXPECT_EQ(pool_.OpenSegment(2).status().code(), StatusCode::kNotFound);
}

TEST_F(SlabPoolTest, SaysWhichSegmentsHaveLeftSinceSomebodyLooked) {
  uint64_t seen = pool_.left_count();
  std::vector<uint32_t> ids;
  EXPECT_TRUE(pool_.LeftSince(&seen, &ids));
  EXPECT_TRUE(ids.empty());
  for (const uint32_t id : {5, 6, 7}) pool_.Add(NumberedSegment(id));
  EXPECT_EQ(pool_.TakeEmpty(1).size(), 2u);
  EXPECT_EQ(pool_.left_count(), 2u);
  ASSERT_TRUE(pool_.LeftSince(&seen, &ids));
  EXPECT_EQ(ids, (std::vector<uint32_t>{6, 7}));
  EXPECT_EQ(seen, 2u);
  std::vector<Victim> victims;
  std::unique_ptr<Segment> empty;
  ASSERT_TRUE(pool_.DrainSegment(&victims, &empty));
  ids.clear();
  ASSERT_TRUE(pool_.LeftSince(&seen, &ids));
  EXPECT_EQ(ids, std::vector<uint32_t>{5});
}

TEST_F(SlabPoolTest, OnlyTheLastSegmentsThatHaveLeftAreRemembered) {
  uint64_t behind = 0, near = 0;
  for (uint32_t id = 1; id <= SlabPool::kLeftMax + 1; ++id) {
    pool_.Add(NumberedSegment(id));
    ASSERT_EQ(pool_.TakeEmpty(0).size(), 1u);
    if (id == 1) near = pool_.left_count();
  }
  std::vector<uint32_t> ids;
  EXPECT_FALSE(pool_.LeftSince(&behind, &ids));
  EXPECT_EQ(behind, pool_.left_count()) << "it starts afresh from here";
  ASSERT_TRUE(pool_.LeftSince(&near, &ids));
  ASSERT_EQ(ids.size(), SlabPool::kLeftMax);
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], i + 2);
}

TEST_F(SlabPoolTest, FailsWhenFullAndRecoversAfterFree) {
  EXPECT_EQ(Allocate(16384), nullptr);
  pool_.Add(NewSegment(8 * kMiB));
  std::vector<ObjectEntry*> taken;
  while (ObjectEntry* entry = Allocate(16384)) taken.push_back(entry);
  EXPECT_GE(taken.size() * 16384, 8 * kMiB * 96 / 100) << "payload below 96 %";
  EXPECT_EQ(pool_.Free(taken.back()), nullptr);
  EXPECT_NE(Allocate(16384), nullptr);
}

TEST_F(SlabPoolTest, AnEmptySlabGivesItsPagesToAnotherClass) {
  pool_.Add(NewSegment());
  std::vector<ObjectEntry*> small;
  while (ObjectEntry* entry = Allocate(64)) small.push_back(entry);
  EXPECT_EQ(Allocate(kMiB), nullptr);
  for (ObjectEntry* entry : small) pool_.Free(entry);
  EXPECT_EQ(pool_.stats().chunk_bytes, 0u);
  EXPECT_NE(Allocate(kMiB), nullptr);
}

TEST_F(SlabPoolTest, ValuesOf64KiBAndMoreAreAlignedForDirectIo) {
  pool_.Add(NewSegment(8 * kMiB));
  for (const uint64_t bytes : {64 * kKiB, 100 * kKiB, 256 * kKiB, 300 * kKiB, kMiB}) {
    ObjectEntry* entry = Allocate(bytes);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry->payload) % kDirectIoBytes, 0u) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry->head) % 64, 0u);
  }
}

// Two objects never share a byte, whatever their sizes.
TEST_F(SlabPoolTest, HeadsAndValuesNeverOverlap) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  pool_.Add(NewSegment(8 * kMiB));
  std::map<std::byte*, std::byte*> spans;
  int placed = 0;
  for (int i = 0; i < 300; ++i) {
    const uint64_t bytes = random() % (uint64_t{1} << (6 + random() % 15));
    ObjectEntry* entry = Allocate(bytes);
    if (entry == nullptr) continue;
    ++placed;
    const bool paged = entry->payload != entry->head + kObjectHeaderBytes;
    const uint64_t head = kObjectHeaderBytes + (paged ? TableBytes(bytes) + 32 : 0);
    spans.emplace(entry->head, entry->head + head);
    spans.emplace(entry->payload, entry->payload + bytes + (paged ? 0 : 32));
  }
  EXPECT_GT(placed, 20);
  std::byte* end = nullptr;
  for (const auto& [from, to] : spans) {
    EXPECT_GE(from, end);
    end = to;
  }
}

TEST_F(SlabPoolTest, WindowsAndSlabsWithHeldObjectsAreLeftAlone) {
  pool_.Add(NewSegment());
  std::vector<ObjectEntry*> taken;
  while (ObjectEntry* entry = Allocate(300 * kKiB)) taken.push_back(entry);
  ASSERT_GE(taken.size(), 6u);
  for (ObjectEntry* entry : taken) entry->holds.fetch_add(1);
  std::vector<Victim> victims;
  EXPECT_FALSE(pool_.DrainWindow(20, &victims));
  taken[2]->holds.fetch_sub(1);
  ASSERT_TRUE(pool_.DrainWindow(19, &victims));
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].entry, taken[2]);
}

TEST_F(SlabPoolTest, ADrainedSegmentComesBackWithItsLastObject) {
  pool_.Add(NewSegment());
  ObjectEntry* a = Allocate(100);
  ObjectEntry* b = Allocate(kMiB);
  std::vector<Victim> victims;
  std::unique_ptr<Segment> empty;
  ASSERT_TRUE(pool_.DrainSegment(&victims, &empty));
  EXPECT_EQ(empty, nullptr);
  EXPECT_EQ(victims.size(), 2u);
  EXPECT_EQ(Allocate(100), nullptr) << "a draining segment hands nothing out";
  EXPECT_EQ(pool_.Free(a), nullptr);
  EXPECT_NE(pool_.Free(b), nullptr);
  EXPECT_EQ(pool_.stats().segments, 0u);
}

TEST_F(SlabPoolTest, SupplySaysWhatIsToBeHadWithoutEvicting) {
  pool_.Add(NewSegment());
  const Footprint small = SizeClasses::Get().For(16384, 32);
  EXPECT_TRUE(pool_.SupplyOf(small, 128).has_run);
  std::vector<ObjectEntry*> taken;
  while (ObjectEntry* entry = Allocate(16384)) taken.push_back(entry);
  SlabPool::Supply supply = pool_.SupplyOf(small, 1);
  EXPECT_FALSE(supply.fits);
  EXPECT_EQ(supply.idle_bytes, 0u);
  EXPECT_EQ(supply.pages, 128u);
  pool_.Free(taken[5]);
  supply = pool_.SupplyOf(small, 64);
  EXPECT_TRUE(supply.fits);
  EXPECT_FALSE(supply.has_run);
  EXPECT_EQ(supply.idle_bytes, SizeClasses::Get().at(small.size_class).chunk_bytes);
  EXPECT_FALSE(pool_.SupplyOf(SizeClasses::Get().For(100, 32), 0).fits);
}

TEST_F(SlabPoolTest, FirstSlabsOfAClassAreShort) {
  pool_.Add(NewSegment(8 * kMiB));
  uint64_t used_pages = 0;
  for (uint64_t bytes = 4 * kKiB; bytes <= 256 * kKiB; bytes *= 2) {
    ASSERT_NE(Allocate(bytes), nullptr);
    used_pages +=
        SizeClasses::Get().at(SizeClasses::Get().For(bytes, 32).size_class).slab_pages_short;
  }
  const SlabPool::Supply supply = pool_.SupplyOf({}, 0);
  EXPECT_GE(supply.free_pages + used_pages, supply.pages);
}

TEST_F(SlabPoolTest, LeftoversAreWhoIsStillInDrainingMemory) {
  pool_.Add(NewSegment());
  ObjectEntry* small = Allocate(100);
  ObjectEntry* large = Allocate(kMiB);
  std::vector<Victim> victims;
  pool_.Leftovers(100, &victims);
  EXPECT_TRUE(victims.empty());
  std::unique_ptr<Segment> empty;
  ASSERT_TRUE(pool_.DrainSegment(&victims, &empty));
  victims.clear();
  pool_.Leftovers(100, &victims);
  EXPECT_EQ(victims.size(), 2u);
  pool_.Free(small);
  victims.clear();
  pool_.Leftovers(100, &victims);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].entry, large);
  EXPECT_EQ(pool_.stats().kept_bytes, 0u);
  EXPECT_NE(pool_.Free(large), nullptr);
}

TEST_F(SlabPoolTest, TakeEmptyKeepsWhatItIsTold) {
  for (int i = 0; i < 3; ++i) pool_.Add(NewSegment());
  EXPECT_EQ(pool_.TakeEmpty(1).size(), 2u);
  EXPECT_EQ(pool_.stats().segments, 1u);
}

}  // namespace
}  // namespace ems::server
