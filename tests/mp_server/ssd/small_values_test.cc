// What must hold: the last of the index is for large values where these fill the disk, and for
// namespaces that have not filled what they have reserved.
#include "mp_server/ssd/small_values.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::ssd {
namespace {

using ::ems::testing::kNs;
using ::ems::testing::kOtherNs;
using ::ems::testing::kQuarter;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using State = Ticket::State;

class SmallValuesTest : public ::testing::Test {
 protected:
  void Store(uint64_t objects, uint64_t value_bytes) {
    for (uint64_t i = 0; i < objects; ++i) {
      Row row;
      row.sequence = 1;
      row.value_bytes = value_bytes;
      index_.Load(NameOf(std::to_string(i)), row);
    }
  }
  SsdIndex index_;
  SmallValues values_{{.index = &index_, .objects_max = 10, .small_bytes = 1000}};
};

TEST_F(SmallValuesTest, TheLastTenthIsForLargeOnes) {
  Store(8, 1000);
  EXPECT_FALSE(values_.Refuses(kNs, 999));
  Store(9, 1000);
  EXPECT_TRUE(values_.Refuses(kNs, 999));
  EXPECT_FALSE(values_.Refuses(kNs, 1000));
}

TEST_F(SmallValuesTest, WhereNearlyAllAreSmallNoneIsRefused) {
  Store(10, 499);
  EXPECT_FALSE(values_.Refuses(kNs, 999));
}

TEST_F(SmallValuesTest, WhoHasReservedMoreIsNotRefused) {
  Store(9, 1000);
  values_.Except({kOtherNs});
  EXPECT_FALSE(values_.Refuses(kOtherNs, 1));
  EXPECT_TRUE(values_.Refuses(kNs, 1));
  values_.Except({});
  EXPECT_TRUE(values_.Refuses(kOtherNs, 1));
}

TEST_F(SmallValuesTest, OnlyWhereMemoryIsTheLimitAreValuesSmall) {
  EXPECT_EQ(SmallValues::BytesFor(1000, 10, 20), 100u);
  EXPECT_EQ(SmallValues::BytesFor(1000, 20, 20), 0u) << "the disk has room for no more either";
}

// --- As the writer uses it.

TEST(WriterSmallValuesTest, WhenTheIndexIsNearlyFullSmallObjectsLeaveItsRoomToLargeOnes) {
  Rig rig({.regions_max = 4, .objects_max = 10, .small_bytes = kQuarter});
  for (uint64_t i = 0; i < 9; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, kQuarter).Wait(), State::kDone);
  EXPECT_EQ(rig.Put("small", 20, 100, false).ticket, nullptr);
  EXPECT_EQ(rig.Put("small and durable", 21, 100).Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->stats().refused_small_objects, 2);
  EXPECT_EQ(rig.writer->stats().shed_objects, 0);
  EXPECT_EQ(rig.writer->stats().dirty_bytes, 0);
  ASSERT_EQ(rig.Put("large", 23, kQuarter).Wait(), State::kDone);
}

TEST(WriterSmallValuesTest, WhatIsReservedIsForSmallOnesToo) {
  Rig rig({.regions_max = 4, .objects_max = 10, .small_bytes = kQuarter});
  for (uint64_t i = 0; i < 9; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, kQuarter).Wait(), State::kDone);
  rig.writer->SetLimits({{kNs, 0, 2 * kMiB}});
  rig.PassQueue();
  EXPECT_EQ(rig.Put("small", 20, 100).Wait(), State::kFailed) << "two regions are full";
  rig.writer->SetLimits({{kNs, 0, 3 * kMiB}});
  rig.PassQueue();
  EXPECT_EQ(rig.Put("small", 20, 100).Wait(), State::kDone);
}

TEST(WriterSmallValuesTest, WhereNearlyAllAreSmallTheyReplaceEachOther) {
  Rig rig({.objects_max = 10, .small_bytes = kQuarter});
  for (uint64_t i = 0; i < 30; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, 100).Wait(), State::kDone) << i;
  EXPECT_EQ(rig.writer->stats().refused_small_objects, 0);
}

// No region gets full before the index is.
TEST(WriterSmallValuesTest, WhenTheIndexIsFullOfSmallObjectsTheyMakeRoomToo) {
  Rig rig({.objects_max = 10});
  for (uint64_t i = 0; i < 30; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, 100).Wait(), State::kDone) << i;
}

}  // namespace
}  // namespace ems::ssd
