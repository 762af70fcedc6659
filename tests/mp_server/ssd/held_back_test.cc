// What must hold: a key that is overwritten again and again is written when it is quiet, and its
// overwrites wait for no disk; nobody is told that a value cannot be lost before it is written; no
// older value is ever in force again.
#include "mp_server/ssd/held_back.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::ssd {
namespace {

using ::ems::testing::Answer;
using ::ems::testing::BeginWrite;
using ::ems::testing::Eventually;
using ::ems::testing::kQuarter;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using State = Ticket::State;
using std::chrono::seconds;

const ObjectName kName = NameOf("a");

class HeldBackTest : public ::testing::Test {
 protected:
  HeldBackTest() {
    Row stored;
    stored.sequence = 1;
    index_.Load(kName, stored);
  }
  // An overwrite of "a" that has told the index; what is owed is written down then.
  WriteJob Begin(uint64_t sequence, uint64_t bytes = 100) {
    auto object = MakeObject("a", sequence, bytes);
    owed_ = BeginWrite(&index_, kName, sequence, *object, true).owed;
    index_.EndOwing(std::span(&owed_, 1));
    dirty_bytes_ += bytes;
    return {.name = kName, .sequence = sequence, .value_bytes = bytes, .object = std::move(object)};
  }
  bool Hold(uint64_t sequence, uint64_t bytes = 100) {
    WriteJob job = Begin(sequence, bytes);
    return held_.Hold(&job);
  }
  // The sequence of what is due by now; 0: nothing is.
  uint64_t Due(bool end = false) {
    const std::vector<WriteJob> due = held_.TakeDue(end);
    EXPECT_LE(due.size(), 1u);
    return due.empty() ? 0 : due.front().sequence;
  }

  ManualClock clock_;
  SsdIndex index_;
  WriterCounts counts_;
  std::atomic<uint64_t> dirty_bytes_{0};
  HeldBack held_{{.index = &index_,
                  .counts = &counts_,
                  .dirty_bytes = &dirty_bytes_,
                  .bytes_max = 1000,
                  .quiet = seconds(2),
                  .longest = seconds(20),
                  .clock = &clock_}};
  OwedDelete owed_;
};

TEST_F(HeldBackTest, AnOverwriteIsDueWhenItsKeyIsQuiet) {
  ASSERT_TRUE(Hold(2));
  EXPECT_EQ(held_.bytes(), 100u);
  clock_.Advance(seconds(2) - Duration(1));
  EXPECT_EQ(Due(), 0u);
  clock_.Advance(Duration(1));
  EXPECT_EQ(Due(), 2u);
  EXPECT_TRUE(held_.empty());
  EXPECT_EQ(held_.bytes(), 0u);
}

TEST_F(HeldBackTest, ALaterValueTakesItsPlaceAndOwesNothing) {
  ASSERT_TRUE(Hold(2, 100));
  EXPECT_TRUE(owed_) << "of what is stored";
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Hold(3, 200));
  EXPECT_FALSE(owed_);
  EXPECT_EQ(dirty_bytes_, 200u);
  EXPECT_EQ(counts_.Get().spared_objects, 1u);
  clock_.Advance(seconds(1));
  EXPECT_EQ(Due(), 0u);
  clock_.Advance(seconds(1));
  EXPECT_EQ(Due(), 3u);
  EXPECT_TRUE(index_.Counts(kName, 3));
}

TEST_F(HeldBackTest, AKeyThatIsNeverQuietIsDueAllTheSame) {
  uint64_t sequence = 2;
  uint64_t due = 0;
  for (int i = 0; i < 21 && due == 0; ++i) {
    ASSERT_TRUE(Hold(sequence++));
    clock_.Advance(seconds(1));
    due = Due();
    EXPECT_EQ(due != 0, i == 19) << i;
  }
  EXPECT_EQ(due, sequence - 1);
}

TEST_F(HeldBackTest, WhatIsTooLargeIsTheCallersAndMayHaveARow) {
  ASSERT_TRUE(Hold(2, 1000));
  WriteJob job = Begin(3, 1001);
  EXPECT_FALSE(held_.Hold(&job));
  EXPECT_NE(job.object, nullptr);
  EXPECT_TRUE(held_.empty()) << "the older one does not count any more";
  EXPECT_EQ(dirty_bytes_, 1001u);
  (void)Begin(4);
  EXPECT_TRUE(owed_);
}

TEST_F(HeldBackTest, WhatFindsNoRoomMakesTheOldestDue) {
  for (const char* key : {"b", "c", "d"}) {
    auto object = MakeObject(key, 1, 400);
    const ObjectName name = NameOf(key);
    Row stored;
    stored.sequence = 1;
    index_.Load(name, stored);
    ASSERT_TRUE(BeginWrite(&index_, name, 2, *object, true).held);
    dirty_bytes_ += 400;
    WriteJob job{.name = name, .sequence = 2, .value_bytes = 400, .object = std::move(object)};
    EXPECT_FALSE(held_.overdue());
    ASSERT_TRUE(held_.Hold(&job));
    clock_.Advance(Duration(1));
  }
  EXPECT_TRUE(held_.overdue());
  EXPECT_EQ(held_.bytes(), 800u);
  const std::vector<WriteJob> due = held_.TakeDue(false);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due.front().name, NameOf("b"));
  EXPECT_FALSE(held_.overdue());
}

TEST_F(HeldBackTest, WhatIsTakenMayHaveARow) {
  ASSERT_TRUE(Hold(2));
  clock_.Advance(seconds(2));
  ASSERT_EQ(Due(), 2u);
  (void)Begin(3);
  EXPECT_TRUE(owed_);
}

TEST_F(HeldBackTest, WhatIsDroppedLeavesNothing) {
  ASSERT_TRUE(Hold(2));
  held_.Drop(kName, 2);
  EXPECT_FALSE(held_.empty()) << "it is not older";
  held_.Drop(kName);
  EXPECT_TRUE(held_.empty());
  EXPECT_EQ(dirty_bytes_, 0u);
  EXPECT_FALSE(index_.Find(kName, false).pending);
  EXPECT_FALSE(index_.Drop(kName));
}

TEST_F(HeldBackTest, OneThatWasOvertakenOnItsWayIsDropped) {
  WriteJob older = Begin(2);
  ASSERT_TRUE(Hold(3));
  EXPECT_TRUE(held_.Hold(&older));
  EXPECT_EQ(dirty_bytes_, 100u);
  EXPECT_TRUE(index_.Counts(kName, 3));
  EXPECT_EQ(Due(true), 3u);
}

TEST_F(HeldBackTest, WhatIsWantedIsDueAtOnce) {
  ASSERT_TRUE(Hold(2));
  held_.Hurry(NameOf("b"));
  EXPECT_EQ(Due(), 0u);
  held_.Hurry(kName);
  EXPECT_EQ(Due(), 2u);
  ASSERT_TRUE(Hold(3));
  EXPECT_TRUE(held_.HurryAll());
  EXPECT_EQ(Due(), 3u);
  EXPECT_FALSE(held_.HurryAll());
}

TEST_F(HeldBackTest, NothingIsOverdueWhenItWasDroppedMeanwhile) {
  ASSERT_TRUE(Hold(2));
  ASSERT_TRUE(held_.HurryAll());
  EXPECT_TRUE(held_.overdue());
  held_.Drop(kName);
  EXPECT_EQ(Due(), 0u);
  EXPECT_FALSE(held_.overdue()) << "the writer would not sleep";
}

TEST_F(HeldBackTest, AfterTheEndNothingIsHeld) {
  ASSERT_TRUE(Hold(2));
  EXPECT_EQ(Due(true), 2u);
  EXPECT_FALSE(Hold(3));
}

// One object, of which a second Put overtakes the first when that has just been asked for.
class PutTwice final : public DirtyObject {
 public:
  PutTwice(std::unique_ptr<DirtyObject> object, std::function<void()> second)
      : object_(std::move(object)), second_(std::move(second)) {}
  bool current() const override { return object_->current(); }
  std::string_view key() const override { return object_->key(); }
  ConstBytes value() const override {
    if (second_) std::exchange(second_, nullptr)();
    return object_->value();
  }
  uint64_t checksum() const override { return object_->checksum(); }
  std::span<const uint64_t> piece_sums() const override { return object_->piece_sums(); }
  uint16_t slot() const override { return object_->slot(); }

 private:
  const std::unique_ptr<DirtyObject> object_;
  mutable std::function<void()> second_;
};

// With a writer, whose clock stands. "a" is stored, and overwritten once.
class HeldBackByAWriterTest : public ::testing::Test {
 protected:
  HeldBackByAWriterTest() {
    EXPECT_EQ(rig_.Put("a", 1, kQuarter).Wait(), State::kDone);
    EXPECT_EQ(rig_.Put("a", 2, kQuarter, false).Wait(), State::kDone);
  }
  ManualClock clock_;
  Rig rig_{{.clock = &clock_}};
};

TEST_F(HeldBackByAWriterTest, OverwritesWaitForTheFirstOfThemAlone) {
  const uint64_t synced = rig_.writer->stats().synced_commits;
  for (uint64_t id = 3; id < 10; ++id)
    EXPECT_EQ(rig_.Put("a", id, kQuarter, false).ticket, nullptr);
  rig_.PassQueue();
  EXPECT_FALSE(rig_.HasRow("a"));
  WriterStats stats = rig_.writer->stats();
  EXPECT_EQ(stats.written_objects, 1u);
  EXPECT_EQ(stats.spared_objects, 7u);
  EXPECT_EQ(stats.synced_commits, synced);
  EXPECT_EQ(stats.held_back_bytes, kQuarter);
  EXPECT_EQ(stats.dirty_bytes, kQuarter);
  EXPECT_EQ(stats.quiet_objects, 0u);
  clock_.Advance(HeldBack::kQuiet);
  ASSERT_TRUE(Eventually([&] { return rig_.writer->stats().dirty_bytes == 0; }));
  EXPECT_EQ(rig_.InMemory("a"), 9u);
  EXPECT_EQ(rig_.InRows("a"), 9u);
  EXPECT_EQ(rig_.writer->stats().quiet_objects, 1u);
}

TEST_F(HeldBackByAWriterTest, TwoPutsOfOneObjectAtOnceLeaveOneOfThem) {
  auto object = std::make_unique<PutTwice>(MakeObject("a", 3, kQuarter), [this] {
    EXPECT_EQ(rig_.Put("a", 3, kQuarter, false).ticket, nullptr);
  });
  EXPECT_EQ(rig_.writer->Put(kName, std::move(object), false, [] {}), nullptr);
  EXPECT_EQ(rig_.writer->stats().held_back_bytes, kQuarter);
  clock_.Advance(HeldBack::kQuiet);
  ASSERT_TRUE(Eventually([&] { return rig_.writer->stats().dirty_bytes == 0; }));
  EXPECT_EQ(rig_.InRows("a"), 3u);
  EXPECT_EQ(rig_.writer->stats().quiet_objects, 1u);
}

TEST_F(HeldBackByAWriterTest, AnOverwriteOfWhatIsOnItsWayToTheDiskWaitsForItsRowToGo) {
  rig_.io->Hold();
  clock_.Advance(HeldBack::kQuiet);
  ASSERT_TRUE(rig_.io->WaitForHeld(1));
  EXPECT_NE(rig_.Put("a", 3, kQuarter, false).ticket, nullptr);
}

TEST_F(HeldBackByAWriterTest, WhoWantsItDurableDoesNotWaitForQuiet) {
  EXPECT_EQ(rig_.MakeDurable("a").Wait(), State::kDone);
  EXPECT_EQ(rig_.InRows("a"), 2u);
}

TEST_F(HeldBackByAWriterTest, ADurablePutIsNeverHeldBackNorWhatOvertakesIt) {
  rig_.io->Hold();
  const Answer durable = rig_.Put("a", 3, kQuarter);
  ASSERT_TRUE(rig_.io->WaitForHeld(1));
  (void)rig_.Put("a", 4, kQuarter, false);
  rig_.io->HoldNoMore();
  EXPECT_EQ(durable.Wait(), State::kDone);
  EXPECT_EQ(rig_.InRows("a"), 4u);
}

TEST_F(HeldBackByAWriterTest, ItsEndWritesIt) {
  rig_.Restart();
  EXPECT_EQ(rig_.InMemory("a"), 2u);
}

TEST_F(HeldBackByAWriterTest, WhatIsRemovedIsNotWritten) {
  EXPECT_EQ(rig_.Remove("a").ticket, nullptr) << "no row of it is left";
  EXPECT_EQ(rig_.writer->stats().dirty_bytes, 0u);
  rig_.Restart();
  EXPECT_FALSE(rig_.Stored("a"));
}

TEST_F(HeldBackByAWriterTest, WhatIsShedTakesTheHeldOneAlong) {
  EXPECT_EQ(rig_.Put("a", 3, 65 * kMiB, false).ticket, nullptr);
  EXPECT_EQ(rig_.writer->stats().dirty_bytes, 0u);
  rig_.Restart();
  EXPECT_FALSE(rig_.Stored("a")) << "an older value";
}

TEST_F(HeldBackByAWriterTest, WhenItsMemoryIsWantedItIsWritten) {
  rig_.writer->HurryHeldBack();
  ASSERT_TRUE(Eventually([&] { return rig_.writer->stats().dirty_bytes == 0; }));
  EXPECT_EQ(rig_.InRows("a"), 2u);
  EXPECT_EQ(rig_.writer->stats().quiet_objects, 0u) << "its key is not quiet";
}

}  // namespace
}  // namespace ems::ssd
