// What must hold: a list that is followed by change is the controller's, or is asked for whole.
#include "cluster/model_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::ModelStatus Row(uint32_t id, uint64_t job = 0, bool pinned = false) {
  v1::ModelStatus row;
  row.mutable_ref()->set_id(id);
  row.set_pinned(pinned);
  row.mutable_job()->set_number(job);
  return row;
}

// As a controller whose list is `rows` sends it: those that are in `sent`.
v1::ListModelsReply Answer(uint64_t number, bool changes, const std::vector<v1::ModelStatus>& rows,
                           const std::vector<v1::ModelStatus>& sent) {
  v1::ListModelsReply reply;
  reply.set_number(number);
  reply.set_changes(changes);
  uint64_t checksum = 0;
  for (const v1::ModelStatus& row : rows) checksum ^= ModelRowHash(row);
  reply.set_checksum(checksum);
  reply.set_versions(static_cast<uint32_t>(rows.size()));
  for (const v1::ModelStatus& row : sent) *reply.add_models() = row;
  return reply;
}

class ModelListTest : public ::testing::Test {
 protected:
  Status Apply(const v1::ListModelsReply& reply) {
    changed.clear();
    removed.clear();
    return list.Apply(reply, &changed, &removed);
  }
  ModelList list;
  std::vector<uint32_t> changed, removed;
};

TEST_F(ModelListTest, ComesWholeOnceThenByChange) {
  ASSERT_EQ(Apply(Answer(7, false, {Row(1), Row(2)}, {Row(1), Row(2)})), OkStatus());
  EXPECT_EQ(list.number(), 7U);
  EXPECT_THAT(changed, ElementsAre(1, 2));
  ASSERT_EQ(Apply(Answer(9, true, {Row(1, 1), Row(2), Row(3)}, {Row(1, 1), Row(3)})), OkStatus());
  EXPECT_THAT(changed, ElementsAre(1, 3));
  EXPECT_EQ(list.Find(1)->job().number(), 1U);
  EXPECT_THAT(list.ids(), ElementsAre(1, 2, 3));
  v1::ListModelsReply gone = Answer(10, true, {Row(1, 1), Row(3)}, {});
  gone.add_removed(2);
  ASSERT_EQ(Apply(gone), OkStatus());
  EXPECT_THAT(removed, ElementsAre(2));
  EXPECT_EQ(list.Find(2), nullptr);
  ASSERT_EQ(Apply(Answer(10, true, {Row(1, 1), Row(3)}, {})), OkStatus()) << "nothing has changed";
  EXPECT_THAT(changed, IsEmpty());
}

TEST_F(ModelListTest, TheSameChangeTwiceIsTheSame) {
  const auto reply = Answer(9, true, {Row(1, 1)}, {Row(1, 1)});
  ASSERT_EQ(Apply(reply), OkStatus());
  ASSERT_EQ(Apply(reply), OkStatus());
}

TEST_F(ModelListTest, AListThatIsNotTheControllersIsAskedForWhole) {
  ASSERT_EQ(Apply(Answer(7, false, {Row(1), Row(2)}, {Row(1), Row(2)})), OkStatus());
  // A job of 2 was not told.
  EXPECT_EQ(Apply(Answer(8, true, {Row(1, 1), Row(2, 1)}, {Row(1, 1)})).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(list.number(), 0U) << "whole";
  ASSERT_EQ(Apply(Answer(8, false, {Row(1, 1), Row(2, 1)}, {Row(1, 1), Row(2, 1)})), OkStatus());
  EXPECT_EQ(list.number(), 8U);
  // A removal was not told.
  EXPECT_EQ(Apply(Answer(9, true, {Row(1, 1)}, {})).code(), StatusCode::kDataLoss);
}

TEST_F(ModelListTest, WhatIsNotInAWholeListIsGone) {
  ASSERT_EQ(Apply(Answer(7, false, {Row(1), Row(2)}, {Row(1), Row(2)})), OkStatus());
  ASSERT_EQ(Apply(Answer(3, false, {Row(2)}, {Row(2)})), OkStatus()) << "another controller's";
  EXPECT_THAT(removed, ElementsAre(1));
  EXPECT_EQ(list.number(), 3U);
}

TEST_F(ModelListTest, ARowIsItsPinAndItsJob) {
  const uint64_t hash = ModelRowHash(Row(1, 1));
  EXPECT_NE(hash, ModelRowHash(Row(2, 1)));
  EXPECT_NE(hash, ModelRowHash(Row(1, 2)));
  EXPECT_NE(hash, ModelRowHash(Row(1, 1, true)));
  v1::ModelStatus ended = Row(1, 1);
  ended.mutable_job()->set_state(v1::PULL_FAILED);
  EXPECT_NE(hash, ModelRowHash(ended));
  v1::ModelStatus urgent = Row(1, 1);
  urgent.mutable_job()->set_priority(9);
  EXPECT_NE(hash, ModelRowHash(urgent));
}

}  // namespace
}  // namespace ems
