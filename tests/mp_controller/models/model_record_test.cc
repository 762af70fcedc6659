// What must hold: a restart makes no version younger or older, and no job longer.
#include "mp_controller/models/model_record.h"

#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr uint64_t kUnixMs = 1'700'000'000'000;

model::Manifest OneVersion() {
  model::Manifest manifest;
  manifest.model = "base";
  manifest.version = "v1";
  manifest.files = {{"w", 200, "t"}};
  manifest.blocks = {{0, 0, 100, {}}, {0, 100, 100, {}}};
  return manifest;
}

v1::ModelStatus RowOf(const ModelRecord& record, TimePoint now) {
  v1::ModelStatus row;
  EXPECT_TRUE(row.ParseFromString(record.Row(record.job, record.pinned, now, kUnixMs)));
  return row;
}

TEST(ModelRecordTest, ItsAgeAndItsLastUseOutliveTheProcess) {
  const TimePoint begin{hours(1000)};
  ModelRecord record(3, OneVersion(), 1, begin);
  record.pinned = true;
  EXPECT_TRUE(record.use_stored);
  record.Use(begin + hours(10));
  EXPECT_FALSE(record.use_stored);
  const v1::ModelStatus row = RowOf(record, begin + hours(30));
  // The machine was restarted: its monotonic clock begins anew.
  const TimePoint now{minutes(1)};
  ModelRecord again(3, OneVersion(), 1, now);
  again.Restore(row, now, kUnixMs + uint64_t{3'600'000});
  EXPECT_TRUE(again.pinned);
  v1::ModelStatus said;
  again.Fill(nullptr, now, &said);
  EXPECT_EQ(milliseconds(said.age_ms()), milliseconds(hours(31)));
  EXPECT_EQ(milliseconds(said.unused_ms()), milliseconds(hours(21)));
}

TEST(ModelRecordTest, WhatIsNotStoredOrFromTheFutureCountsFromNow) {
  const TimePoint now{hours(1)};
  ModelRecord record(3, OneVersion(), 1, TimePoint());
  record.Restore({}, now, kUnixMs);
  EXPECT_EQ(record.used, now) << "of an older controller";
  v1::ModelStatus row;
  row.set_used_unix_ms(kUnixMs + 1);
  record.Restore(row, now, kUnixMs);
  EXPECT_EQ(record.used, now) << "the wall clock was set back";
}

TEST(ModelRecordTest, SaysWhatItIs) {
  ModelRecord record(3, OneVersion(), 1, TimePoint());
  v1::ModelStatus said;
  record.Fill(nullptr, TimePoint(), &said);
  EXPECT_EQ(said.ref().id(), 3U);
  EXPECT_EQ(said.ref().version(), "v1");
  EXPECT_EQ(said.bytes(), 200U);
  EXPECT_EQ(said.blocks(), 2U);
  EXPECT_EQ(said.job().state(), v1::PULL_NONE);
}

}  // namespace
}  // namespace ems::controller
