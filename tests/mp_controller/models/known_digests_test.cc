// What must hold: a digest that is known does not change and outlives a restart; what the disk
// refuses is not known.
#include "mp_controller/models/known_digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/fail_point.h"
#include "mp_controller/models/model_rows.h"
#include "mp_controller/rows/durable_rows.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using ::testing::ElementsAre;

class KnownDigestsTest : public ::testing::Test {
 protected:
  // As a controller that begins: what is stored.
  KnownDigests Loaded() {
    KnownDigests known(1, manifest_);
    EXPECT_EQ(rows_->ForEach([&](std::string_view key, std::string_view value) {
      const auto name = ParseDigestRowName(key.substr(kDigestPrefix.size()));
      return name.ok() ? known.Load(name->first, value) : name.status();
    }),
              OkStatus());
    return known;
  }

  const TempDir dir_;
  const model::Manifest manifest_ = Sample("v1");
  std::unique_ptr<DurableRows> rows_ = std::move(*DurableRows::Open(dir_.path(), ""));
};

TEST_F(KnownDigestsTest, AreToldInTheOrderInWhichTheyBecameKnown) {
  KnownDigests known(1, manifest_);
  ASSERT_EQ(known.Take({{2, Digest(2)}, {0, Digest(0)}}, rows_.get()), OkStatus());
  ASSERT_EQ(known.Take({{0, Digest(0)}, {1, Digest(1)}}, rows_.get()), OkStatus());
  v1::GetDigestsReply all, rest, none;
  EXPECT_TRUE(known.Fill(0, &all));
  EXPECT_THAT(all.blocks(), ElementsAre(2, 0, 1));
  EXPECT_TRUE(known.Fill(2, &rest));
  EXPECT_THAT(rest.blocks(), ElementsAre(1));
  EXPECT_EQ(rest.digests(), AsText(Digest(1)));
  EXPECT_EQ(rest.known(), 3U);
  EXPECT_FALSE(known.Fill(9, &none));
  EXPECT_THAT(Loaded().blocks(), ElementsAre(2, 0, 1)) << "also after a restart";
}

TEST_F(KnownDigestsTest, OneThatIsRefusedSaysNothingOfTheOthers) {
  KnownDigests known(1, manifest_);
  ASSERT_EQ(known.Take({{0, Digest(0)}}, rows_.get()), OkStatus());
  EXPECT_EQ(known.Take({{0, Digest(9)}, {1, Digest(1)}}, rows_.get()).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(known.Take({{4, Digest(4)}}, rows_.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Loaded().blocks(), ElementsAre(0, 1));
}

TEST_F(KnownDigestsTest, WhatTheDiskRefusesIsNotKnown) {
  KnownDigests known(1, manifest_);
  ASSERT_EQ(ArmFailPoints("rows.write=error@1"), OkStatus());
  EXPECT_FALSE(known.Take({{0, Digest(0)}}, rows_.get()).ok());
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  EXPECT_EQ(known.count(), 0U);
  ASSERT_EQ(known.Take({{0, Digest(7)}}, rows_.get()), OkStatus()) << "nor must it be that";
  std::vector<std::string> keys;
  known.AppendKeys(&keys);
  EXPECT_THAT(keys, ElementsAre(DigestKey(1, 0)));
}

TEST_F(KnownDigestsTest, VeryManyTakeSeveralRowsAndAnswers) {
  model::Manifest large = manifest_;
  constexpr uint32_t kBlocks = KnownDigests::kRowMax + 10;
  large.blocks.resize(kBlocks);
  KnownDigests known(1, large);
  KnownDigests::Digests digests;
  for (uint32_t i = 0; i < kBlocks; ++i) digests.emplace_back(i, Digest(static_cast<uint8_t>(i)));
  ASSERT_EQ(known.Take(digests, rows_.get()), OkStatus());
  std::vector<std::string> keys;
  known.AppendKeys(&keys);
  EXPECT_THAT(keys, ElementsAre(DigestKey(1, 0), DigestKey(1, KnownDigests::kRowMax)));
  v1::GetDigestsReply first, rest;
  EXPECT_TRUE(known.Fill(0, &first));
  EXPECT_EQ(first.blocks_size(), static_cast<int>(KnownDigests::kRowMax));
  EXPECT_TRUE(known.Fill(KnownDigests::kRowMax, &rest));
  EXPECT_EQ(rest.blocks_size(), 10);
}

}  // namespace
}  // namespace ems::controller
