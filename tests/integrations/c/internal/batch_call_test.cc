// Arguments and codes; what batches do is tested by tests/integrations/c/batch_api_test.cc.
#include "integrations/c/internal/batch_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(TallyTest, AllOkIsOk) {
  Tally tally;
  EXPECT_EQ(tally.Add(OkStatus()), EMS_OK);
  EXPECT_EQ(tally.Add(OkStatus()), EMS_OK);
  EXPECT_EQ(tally.Finish().status, OkStatus());
  EXPECT_EQ(tally.Finish().value, 2u);
}

TEST(TallyTest, AMissIsAMissAndAFailureGoesFirst) {
  Tally tally;
  tally.Add(OkStatus());
  EXPECT_EQ(tally.Add(Miss()), EMS_NOT_FOUND);
  EXPECT_EQ(tally.Finish().status.code(), StatusCode::kNotFound);
  tally.Add(Error(StatusCode::kDataLoss, "bad bytes"));
  tally.Add(Error(StatusCode::kUnavailable, "gone"));
  EXPECT_EQ(tally.Finish().status, Error(StatusCode::kDataLoss, "item 2 of 4: bad bytes"));
  EXPECT_EQ(tally.Finish().value, 1u);
}

class BatchCallTest : public ::testing::Test {
 protected:
  // Expects that it is refused and that all codes and lengths say so.
  void ExpectRefused(BatchKind kind, size_t count, const std::string& text) {
    codes_.fill(EMS_OK);
    lengths_.fill(99);
    const auto call = BatchCall::Make(
        nullptr, kind, {items_.data(), count, nullptr, codes_.data(), lengths_.data()}, true);
    ASSERT_FALSE(call.ok());
    EXPECT_EQ(call.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(Message(call.status())), HasSubstr(text));
    EXPECT_THAT(std::span(codes_).first(count), Each(EMS_INVALID_ARGUMENT));
    EXPECT_THAT(std::span(lengths_).first(count), Each(0u));
  }

  std::array<char, 8> memory_{};
  ems_iov piece_{memory_.data(), memory_.size()};
  std::array<ems_item, 2> items_{{{"a", 1, {&piece_, 1}}, {"b", 1, {&piece_, 1}}}};
  std::array<ems_status, 2> codes_{};
  std::array<uint64_t, 2> lengths_{};
};

TEST_F(BatchCallTest, GoodItemsAreCountedAndOnlyPutsAndGetsNeedMemory) {
  const ClientCore core(nullptr, std::chrono::seconds(1));
  auto call = BatchCall::Make(&core, BatchKind::kPut, {items_.data(), 2, {}, {}, {}}, true);
  ASSERT_TRUE(call.ok()) << call.status();
  // 16 bytes at 100 MB/s.
  EXPECT_EQ((*call)->timeout(), std::chrono::seconds(1) + std::chrono::nanoseconds(160));
  items_[0].value = {};
  items_[1].value = {};
  EXPECT_TRUE(
      BatchCall::Make(nullptr, BatchKind::kExists, {items_.data(), 2, {}, {}, {}}, false).ok());
  ExpectRefused(BatchKind::kGet, 2, "item 0: value has 0 pieces");
}

TEST_F(BatchCallTest, ABadItemIsNamedAndRefusesTheWholeBatch) {
  items_[1].key_size = 0;
  ExpectRefused(BatchKind::kRemove, 2, "item 1: key of 0 bytes");
  items_[1].key = nullptr;
  ExpectRefused(BatchKind::kPut, 2, "item 1: key is NULL");
}

TEST_F(BatchCallTest, CountsOutOfRangeTouchNothing) {
  ExpectRefused(BatchKind::kPut, 0, "count is 0");
  codes_.fill(EMS_OK);
  EXPECT_FALSE(BatchCall::Make(nullptr, BatchKind::kPut,
                               {items_.data(), EMS_BATCH_MAX + 1, nullptr, codes_.data(), nullptr},
                               true)
                   .ok());
  EXPECT_THAT(codes_, Each(EMS_OK));
  EXPECT_FALSE(BatchCall::Make(nullptr, BatchKind::kPut, {nullptr, 1, {}, {}, {}}, true).ok());
}

}  // namespace
}  // namespace ems::capi
