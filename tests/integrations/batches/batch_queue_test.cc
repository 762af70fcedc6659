// What must hold without a pool: each batch is over exactly once, in time, without a success, and
// the descriptor says so. With one: tests/integrations/engines/.
#include "integrations/batches/batch_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <map>

namespace ems::batches {
namespace {

std::unique_ptr<BatchQueue> Open(const BatchQueueOptions& options) {
  context::KeyDomain domain;
  domain.model = "model";
  auto queue = BatchQueue::Open(*context::BlockHasher::Make(domain), options);
  EXPECT_TRUE(queue.ok()) << queue.status();
  return *std::move(queue);
}

BatchRequest Exists(size_t names) {
  BatchRequest request;
  for (size_t i = 0; i < names; ++i) request.names.push_back(std::to_string(i));
  return request;
}

// Outcomes by id, until there are `count`.
std::map<uint64_t, BatchOutcome> DrainAll(BatchQueue* queue, size_t count) {
  std::map<uint64_t, BatchOutcome> all;
  pollfd waiting{.fd = queue->event_fd(), .events = POLLIN, .revents = 0};
  while (all.size() < count && ::poll(&waiting, 1, 20'000) == 1) {
    for (BatchOutcome& outcome : queue->Drain()) {
      const uint64_t id = outcome.id;
      EXPECT_TRUE(all.emplace(id, std::move(outcome)).second) << id << " is over twice";
    }
  }
  return all;
}

TEST(BatchQueueTest, BatchesAreMissesUntilThereIsAClient) {
  const auto queue = Open({});
  EXPECT_EQ(queue->Submit(Exists(3)), 1u);
  BatchRequest get = Exists(1);
  std::array<std::byte, 4> memory{};
  get.kind = BatchKind::kGet;
  get.parts = {memory};
  get.part_ends = {1};
  EXPECT_EQ(queue->Submit(std::move(get)), 2u);
  const auto over = DrainAll(queue.get(), 2);
  ASSERT_EQ(over.size(), 2u);
  EXPECT_EQ(over.at(1).done, std::vector<bool>(3, false));
  for (const auto& [id, outcome] : over) EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(queue->Drain().empty());
  const BatchOutcome now = queue->Run(Exists(2));
  EXPECT_EQ(now.id, 0u);
  EXPECT_EQ(now.done, std::vector<bool>(2, false));
  EXPECT_EQ(now.status.code(), StatusCode::kUnavailable);
}

TEST(BatchQueueTest, OneThatMakesNoSenseIsOverAtOnce) {
  const auto queue = Open({});
  const uint64_t id = queue->Fail(2, Error(StatusCode::kInvalidArgument, "no names"));
  const std::vector<BatchOutcome> over = queue->Drain();
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over[0].id, id);
  EXPECT_EQ(over[0].done.size(), 2u);
  EXPECT_EQ(over[0].status, Error(StatusCode::kInvalidArgument, "no names"));
}

TEST(BatchQueueTest, NoBatchIsLostWhenMoreComeThanMayWait) {
  constexpr size_t kBatches = 3000;
  const auto queue = Open({.threads = 1, .waiting_max = 4});
  for (size_t i = 0; i < kBatches; ++i) queue->Submit(Exists(2));
  const auto over = DrainAll(queue.get(), kBatches);
  ASSERT_EQ(over.size(), kBatches);
  for (const auto& [id, outcome] : over) {
    EXPECT_EQ(outcome.done, std::vector<bool>(2, false));
    EXPECT_TRUE(outcome.status.code() == StatusCode::kUnavailable ||
                outcome.status.code() == StatusCode::kResourceExhausted)
        << outcome.status;
  }
}

TEST(BatchQueueTest, ABatchThatFoundNoThreadInTimeSaysSo) {
  const auto queue = Open({.timeout = Duration(1)});
  queue->Submit(Exists(1));
  const auto over = DrainAll(queue.get(), 1);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_EQ(over.at(1).status.code(), StatusCode::kDeadlineExceeded);
}

TEST(BatchQueueTest, ClosedItEndsWhatWaitedAndWhatStillComes) {
  const auto queue = Open({.threads = 1});
  for (int i = 0; i < 100; ++i) queue->Submit(Exists(1));
  queue->Close();
  queue->Close();
  EXPECT_EQ(queue->Submit(Exists(1)), 101u);
  const std::vector<BatchOutcome> over = queue->Drain();
  ASSERT_EQ(over.size(), 101u);
  EXPECT_EQ(over.back().status, Error(StatusCode::kUnavailable, "the connector is closed"));
  EXPECT_EQ(queue->Run(Exists(1)).status.code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::batches
