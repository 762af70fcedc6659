// What must hold: what is said of a key is never more than was read of it, a key that is read a
// lot is never left out, and counting and merging need no lock.
#include "mp_server/hot/read_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "common/thread_pool.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(1), 1};
constexpr uint64_t kLarge = ReadSketch::kCountedBytes;

void Read(ReadSketch* sketch, const std::string& key, uint64_t bytes, NamespaceRef ns = kNs) {
  if (!sketch->Samples(bytes)) return;
  sketch->Count({.ns = ns, .slot = SlotId(7), .key = key, .hash = KeyHash(key)}, bytes);
}

std::optional<ReadCount> Of(const std::vector<ReadCount>& counts, const std::string& key,
                            NamespaceRef ns = kNs) {
  const auto found = std::ranges::find_if(
      counts, [&](const ReadCount& one) { return one.key == key && one.ns == ns; });
  return found == counts.end() ? std::nullopt : std::optional(*found);
}

// A thread hands its half over with its next read.
std::vector<ReadCount> EndPeriod(ReadSketch* sketch) {
  (void)sketch->Take();
  Read(sketch, "of the next period", kLarge);
  return sketch->Take();
}

TEST(ReadSketchTest, LargeValuesAreCountedOneByOne) {
  ReadSketch sketch;
  for (int i = 0; i < 37; ++i) Read(&sketch, "a", kLarge);
  Read(&sketch, "b", kLarge + 5);
  const auto counts = EndPeriod(&sketch);
  const auto a = Of(counts, "a");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->reads, 37U);
  EXPECT_EQ(a->bytes, 37 * kLarge);
  EXPECT_EQ(a->slot, SlotId(7));
  EXPECT_EQ(a->hash, KeyHash("a"));
  EXPECT_EQ(Of(counts, "b")->bytes, kLarge + 5);
  EXPECT_FALSE(Of(counts, "of the next period"));
}

TEST(ReadSketchTest, OfSmallValuesOneReadInSixteenCountsForAll) {
  ReadSketch sketch;
  for (int i = 0; i < 160'000; ++i) Read(&sketch, "a", 4096);
  const auto a = Of(EndPeriod(&sketch), "a");
  ASSERT_TRUE(a);
  EXPECT_NEAR(static_cast<double>(a->reads), 160'000, 8'000);
  EXPECT_EQ(a->bytes, a->reads * 4096);
}

TEST(ReadSketchTest, AKeyThatMostReadsAreOfIsFoundAmongManyAndNotOvercounted) {
  ReadSketch sketch;
  for (int i = 0; i < 4000; ++i) {
    Read(&sketch, "seldom " + std::to_string(i), kLarge);
    Read(&sketch, "often", kLarge);
  }
  const auto counts = EndPeriod(&sketch);
  EXPECT_LE(counts.size(), ReadSketch::kKeys);
  const auto often = Of(counts, "often");
  ASSERT_TRUE(often);
  EXPECT_EQ(often->reads, 4000U);
  for (const ReadCount& one : counts) {
    EXPECT_LE(one.reads, one.key == "often" ? 4000U : 1U) << one.key;
  }
}

TEST(ReadSketchTest, EachPeriodCountsForItself) {
  ReadSketch sketch;
  for (int i = 0; i < 5; ++i) Read(&sketch, "a", kLarge);
  (void)sketch.Take();
  for (int i = 0; i < 3; ++i) Read(&sketch, "a", kLarge);
  EXPECT_EQ(Of(sketch.Take(), "a")->reads, 5U);
  Read(&sketch, "b", kLarge);
  EXPECT_EQ(Of(sketch.Take(), "a")->reads, 3U);
}

TEST(ReadSketchTest, WhatAThreadCountedBeforeItWasIdleIsNotTakenForTheLastPeriods) {
  ReadSketch sketch;
  Read(&sketch, "old", kLarge);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sketch.Take().empty());
  Read(&sketch, "new", kLarge);
  EXPECT_TRUE(sketch.Take().empty());
}

TEST(ReadSketchTest, OneNameInTwoNamespacesIsTwoKeys) {
  constexpr NamespaceRef kOther{NamespaceId(2), 1};
  ReadSketch sketch;
  for (int i = 0; i < 4; ++i) Read(&sketch, "a", kLarge);
  Read(&sketch, "a", kLarge, kOther);
  const auto counts = EndPeriod(&sketch);
  EXPECT_EQ(Of(counts, "a")->reads, 4U);
  EXPECT_EQ(Of(counts, "a", kOther)->reads, 1U);
}

// Under TSan this is also the proof that a half is not written while it is read.
TEST(ReadSketchTest, ThreadsCountWhileAnotherOneMerges) {
  ReadSketch sketch;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> read{0};
  const auto count = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      Read(&sketch, "a", kLarge);
      read.fetch_add(1, std::memory_order_relaxed);
    }
  };
  uint64_t seen = 0;
  {
    Thread one("one", count), two("two", count);
    while (seen < 1000) {
      for (const ReadCount& counted : sketch.Take()) {
        EXPECT_EQ(counted.key, "a");
        EXPECT_EQ(counted.bytes, counted.reads * kLarge);
        seen += counted.reads;
      }
      std::this_thread::yield();
    }
    stop.store(true, std::memory_order_relaxed);
    one.Join();
    two.Join();
  }
  EXPECT_LE(seen, read.load());
}

TEST(ReadSketchTest, ThreadsBeyondTheLastTableAreNotCountedAndHarmNothing) {
  ReadSketch sketch;
  for (size_t i = 0; i <= ReadSketch::kThreadsMax; ++i) {
    Thread("reader", [&] { Read(&sketch, "a", kLarge); }).Join();
  }
  Thread("last", [&] { EXPECT_FALSE(sketch.Samples(kLarge)); }).Join();
}

}  // namespace
}  // namespace ems::server
