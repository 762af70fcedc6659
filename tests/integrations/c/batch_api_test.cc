// Batches and the completion queue through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <vector>

#include "common/clock.h"
#include "tests/integrations/c/api_test.h"

namespace ems::capi {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BatchApiTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    for (size_t i = 0; i < kKeys; ++i) {
      keys_.push_back(std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
                      std::to_string(i));
      values_.push_back("value " + std::to_string(i));
    }
    for (size_t i = 0; i < kKeys; ++i) {
      pieces_[i] = PieceOf(&values_[i]);
      items_[i] = Item(keys_[i], &pieces_[i]);
    }
  }
  void MakeQueue(uint32_t depth) {
    ASSERT_EQ(ems_cq_create(client_, depth, &queue_), EMS_OK) << ems_last_error();
  }
  void TearDown() override {
    ems_cq_destroy(queue_);
    ApiTest::TearDown();
  }
  ems_completion Next() {
    ems_completion next{};
    size_t count = 0;
    for (int i = 0; i < 10 && count == 0; ++i) {  // it may be readable once too often
      pollfd waiting{.fd = ems_cq_fd(queue_), .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&waiting, 1, 20'000), 1);
      EXPECT_EQ(ems_cq_poll(queue_, &next, 1, &count), EMS_OK) << ems_last_error();
    }
    EXPECT_EQ(count, 1u);
    return next;
  }

  static constexpr size_t kKeys = 4;
  std::vector<std::string> keys_, values_;
  std::array<ems_iov, kKeys> pieces_{};
  std::array<ems_item, kKeys> items_{};
  std::array<ems_status, kKeys> codes_{};
  std::array<uint64_t, kKeys> lengths_{};
  ems_cq* queue_ = nullptr;
};

TEST_F(BatchApiTest, EachKeyHasItsCodeAndMissesAreNotHidden) {
  ASSERT_EQ(ems_put_batch(client_, items_.data(), 3, nullptr, codes_.data()), EMS_OK);
  EXPECT_EQ(ems_exists_batch(client_, items_.data(), 3, nullptr, codes_.data()), EMS_OK);
  EXPECT_EQ(ems_exists_batch(client_, items_.data(), 4, nullptr, codes_.data()), EMS_NOT_FOUND);
  EXPECT_THAT(codes_, ElementsAre(EMS_OK, EMS_OK, EMS_OK, EMS_NOT_FOUND));
  for (std::string& value : values_) value.assign(value.size(), '?');
  EXPECT_EQ(ems_get_batch(client_, items_.data(), 4, nullptr, codes_.data(), lengths_.data()),
            EMS_NOT_FOUND);
  EXPECT_THAT(codes_, ElementsAre(EMS_OK, EMS_OK, EMS_OK, EMS_NOT_FOUND));
  EXPECT_THAT(lengths_, ElementsAre(7, 7, 7, 0));
  EXPECT_EQ(values_[0] + values_[1] + values_[2], "value 0value 1value 2");
  EXPECT_EQ(ems_remove_batch(client_, items_.data(), 4, nullptr, codes_.data()), EMS_NOT_FOUND);
  EXPECT_THAT(codes_, ElementsAre(EMS_OK, EMS_OK, EMS_OK, EMS_NOT_FOUND));
  EXPECT_EQ(ems_exists_batch(client_, items_.data(), 4, nullptr, nullptr), EMS_NOT_FOUND);
}

TEST_F(BatchApiTest, AFailureIsNamedBeforeAMiss) {
  ASSERT_EQ(Put(keys_[2], "much more than there is room for"), EMS_OK);
  EXPECT_EQ(ems_get_batch(client_, items_.data(), 4, nullptr, codes_.data(), lengths_.data()),
            EMS_OUT_OF_RANGE);
  EXPECT_THAT(codes_, ElementsAre(EMS_NOT_FOUND, EMS_NOT_FOUND, EMS_OUT_OF_RANGE, EMS_NOT_FOUND));
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("item 2 of 4"));
}

TEST_F(BatchApiTest, SubmittedBatchesCompleteWithTheirTags) {
  MakeQueue(16);
  {
    // What only describes the batch may go at once.
    std::array<ems_item, kKeys> items = items_;
    std::array<ems_iov, kKeys> pieces = pieces_;
    std::vector<std::string> keys = keys_;
    for (size_t i = 0; i < kKeys; ++i) items[i] = Item(keys[i], &pieces[i]);
    ASSERT_EQ(ems_put_submit(queue_, 100, items.data(), kKeys, nullptr, codes_.data()), EMS_OK);
    items.fill({});
    pieces.fill({});
    for (std::string& key : keys) key.assign(key.size(), '!');
  }
  ems_completion done = Next();
  EXPECT_EQ(done.tag, 100u);
  EXPECT_EQ(done.code, EMS_OK);
  EXPECT_EQ(done.value, kKeys);
  EXPECT_THAT(codes_, Each(EMS_OK));

  for (std::string& value : values_) value.assign(value.size(), '?');
  ASSERT_EQ(ems_get_submit(queue_, UINT64_MAX, items_.data(), kKeys, nullptr, codes_.data(),
                           lengths_.data()),
            EMS_OK);
  done = Next();
  EXPECT_EQ(done.tag, UINT64_MAX);
  EXPECT_EQ(done.code, EMS_OK);
  EXPECT_THAT(lengths_, Each(7u));
  EXPECT_EQ(values_[3], "value 3");

  ASSERT_EQ(ems_remove_submit(queue_, 1, items_.data(), 1, nullptr, nullptr), EMS_OK);
  EXPECT_EQ(Next().code, EMS_OK);
  ASSERT_EQ(ems_exists_submit(queue_, 2, items_.data(), kKeys, nullptr, codes_.data()), EMS_OK);
  done = Next();
  EXPECT_EQ(done.code, EMS_NOT_FOUND);
  EXPECT_EQ(done.value, 3u);
  EXPECT_THAT(codes_, ElementsAre(EMS_NOT_FOUND, EMS_OK, EMS_OK, EMS_OK));
  EXPECT_STREQ(ems_last_error(), "no such key");
}

TEST_F(BatchApiTest, AFullQueueRefusesAtOnceAndTakesAgainAfterAPoll) {
  MakeQueue(2);
  ASSERT_EQ(ems_exists_submit(queue_, 1, items_.data(), 1, nullptr, nullptr), EMS_OK);
  ASSERT_EQ(ems_exists_submit(queue_, 2, items_.data(), 1, nullptr, nullptr), EMS_OK);
  EXPECT_EQ(ems_exists_submit(queue_, 3, items_.data(), 1, nullptr, nullptr),
            EMS_RESOURCE_EXHAUSTED);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("full"));
  Next();
  EXPECT_EQ(ems_exists_submit(queue_, 4, items_.data(), 1, nullptr, nullptr), EMS_OK);
  Next();
  Next();
  std::array<ems_completion, 2> none;
  size_t count = 9;
  EXPECT_EQ(ems_cq_poll(queue_, none.data(), none.size(), &count), EMS_OK);
  EXPECT_EQ(count, 0u);
}

// Memory of calls may go when the queue has gone, whatever was under way.
TEST_F(BatchApiTest, DestroyWithCallsUnderWayWaitsForThemAndOutlivesTheClient) {
  MakeQueue(64);
  auto large = std::make_unique<std::string>(8 << 20, 'v');
  ems_iov piece = PieceOf(large.get());
  std::vector<std::string> keys;
  keys.reserve(32);
  for (int i = 0; i < 32; ++i) keys.push_back("large " + std::to_string(i));
  for (size_t i = 0; i < keys.size(); ++i) {
    const ems_item item = Item(keys[i], &piece);
    ASSERT_EQ(ems_put_submit(queue_, i, &item, 1, nullptr, nullptr), EMS_OK) << ems_last_error();
  }
  ems_client_destroy(client_);
  client_ = nullptr;
  const TimePoint start = Clock::System().Now();
  ems_cq_destroy(queue_);
  queue_ = nullptr;
  EXPECT_LE(Clock::System().Now() - start, std::chrono::seconds(2));
  large.reset();
}

TEST_F(BatchApiTest, BadInputIsACodeAndAText) {
  MakeQueue(1);
  ems_cq* other = nullptr;
  ems_completion one;
  size_t count = 0;
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  const auto told = [this] {
    EXPECT_THAT(codes_, Each(EMS_INVALID_ARGUMENT));
    codes_.fill(EMS_OK);
  };
  refused(ems_put_batch(nullptr, items_.data(), 4, nullptr, codes_.data()), "client is NULL");
  told();
  refused(ems_get_batch(client_, nullptr, 4, nullptr, codes_.data(), nullptr), "items is NULL");
  told();
  refused(ems_exists_submit(nullptr, 1, items_.data(), 4, nullptr, codes_.data()), "queue is NULL");
  told();
  ems_call_options bad{};
  refused(ems_remove_submit(queue_, 1, items_.data(), 4, &bad, codes_.data()), "ems_call_options");
  told();
  refused(ems_put_submit(queue_, 1, items_.data(), 0, nullptr, nullptr), "count is 0");
  items_[2].value.count = 0;
  refused(ems_get_submit(queue_, 1, items_.data(), 4, nullptr, codes_.data(), nullptr), "item 2");
  told();
  refused(ems_cq_create(nullptr, 1, &other), "client is NULL");
  refused(ems_cq_create(client_, 0, &other), "depth is 0");
  refused(ems_cq_create(client_, 1, nullptr), "queue is NULL");
  refused(ems_cq_poll(nullptr, &one, 1, &count), "queue is NULL");
  refused(ems_cq_poll(queue_, nullptr, 1, &count), "completions is NULL");
  refused(ems_cq_poll(queue_, &one, 0, &count), "max is 0");
  refused(ems_cq_poll(queue_, &one, 1, nullptr), "count is NULL");
  EXPECT_EQ(ems_cq_fd(nullptr), -1);
  ems_cq_destroy(nullptr);
  // None of it took a place.
  EXPECT_EQ(ems_exists_submit(queue_, 1, items_.data(), 1, nullptr, nullptr), EMS_OK);
  Next();
}

}  // namespace
}  // namespace ems::capi
