#include "ems_context/internal/block_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ems_context/fake_block_store.h"

namespace ems::context {
namespace {

using ::testing::ElementsAre;
using Keys = std::vector<std::string>;

constexpr BatchLimits kPairs{.bytes_max = 1000, .items_max = 2};

Deadline Soon() { return Deadline::After(std::chrono::minutes(1)); }
Deadline Over() { return Deadline(Clock::System().Now()); }

TEST(BlockBatchesTest, BatchesGoRootFirstAndTailFirstWithin) {
  test::FakeBlockStore store;
  for (const char* key : {"a", "b", "c", "d", "e"}) store.Set(key, "x");
  const Keys keys = {"a", "b", "c", "d", "e"};
  const auto present = ExistsInBatches(&store, keys, ExistsScope::kAll, true, kPairs, Soon());
  EXPECT_EQ(present.size(), 5u);
  const auto calls = store.TakeCalls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_THAT(calls[0].keys, ElementsAre("b", "a"));
  EXPECT_THAT(calls[1].keys, ElementsAre("d", "c"));
  EXPECT_THAT(calls[2].keys, ElementsAre("e"));
}

TEST(BlockBatchesTest, ResultsAreInTheOrderOfTheItems) {
  test::FakeBlockStore store;
  store.Set("a", "1");
  store.Set("c", "333");
  std::vector<std::string> memory(3, "....");
  std::vector<GetItem> items;
  const Keys keys = {"a", "b", "c"};
  for (size_t i = 0; i < 3; ++i)
    items.push_back({.key = keys[i], .into = std::as_writable_bytes(std::span(memory[i]))});
  const auto blocks = GetInBatches(&store, items, true, kPairs, Soon());
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(*blocks[0], 1u);
  EXPECT_EQ(blocks[1].status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*blocks[2], 3u);
  EXPECT_EQ(memory[2], "333.");
}

TEST(BlockBatchesTest, LookingForALeadingRunStopsBehindTheBatchThatEndsIt) {
  test::FakeBlockStore store;
  for (const char* key : {"a", "c", "d", "e"}) store.Set(key, "x");
  const Keys keys = {"a", "b", "c", "d", "e"};
  const auto present = ExistsInBatches(&store, keys, ExistsScope::kLeading, true, kPairs, Soon());
  EXPECT_EQ(store.TakeCalls().size(), 1u);
  ASSERT_EQ(present.size(), 5u);
  EXPECT_TRUE(*present[0]);
  for (size_t i = 1; i < 5; ++i) EXPECT_FALSE(*present[i]);
}

TEST(BlockBatchesTest, NothingIsAskedWhenTheTimeIsOver) {
  test::FakeBlockStore store;
  const Keys keys = {"a", "b"};
  for (const auto& one : ExistsInBatches(&store, keys, ExistsScope::kAll, true, kPairs, Over()))
    EXPECT_EQ(one.status().code(), StatusCode::kDeadlineExceeded);
  const std::vector<GetItem> gets = {{.key = "a", .into = {}}};
  EXPECT_EQ(GetInBatches(&store, gets, true, kPairs, Over())[0].status().code(),
            StatusCode::kDeadlineExceeded);
  const std::vector<PutItem> puts = {{.key = "a", .value = std::string_view("x")}};
  const PutOutcome outcome = PutInBatches(&store, puts, Durability::kDefault, kPairs, Over());
  EXPECT_EQ(outcome.items[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(outcome.batches, 0u);
  EXPECT_TRUE(store.TakeCalls().empty());
}

TEST(BlockBatchesTest, EachBatchGetsWhatIsLeftOfTheTime) {
  test::FakeBlockStore store;
  for (const char* key : {"a", "b", "c"}) store.Set(key, "x");
  const Keys keys = {"a", "b", "c"};
  ExistsInBatches(&store, keys, ExistsScope::kAll, false, kPairs,
                  Deadline::After(std::chrono::seconds(60)));
  const auto calls = store.TakeCalls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_LE(calls[0].timeout, std::chrono::seconds(60));
  EXPECT_LE(calls[1].timeout, calls[0].timeout);
  EXPECT_GT(calls[1].timeout, Duration::zero());
  EXPECT_FALSE(calls[0].touch);
}

}  // namespace
}  // namespace ems::context
