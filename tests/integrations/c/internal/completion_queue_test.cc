#include "integrations/c/internal/completion_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>

#include "common/thread_pool.h"

namespace ems::capi {
namespace {

bool IsReadable(const CompletionQueue& queue) {
  pollfd waiting{.fd = queue.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) == 1;
}

std::unique_ptr<CompletionQueue> Make(uint32_t depth) {
  auto queue = CompletionQueue::Create(depth);
  EXPECT_TRUE(queue.ok()) << queue.status();
  return *std::move(queue);
}

TEST(CompletionQueueTest, WhatEndsFirstIsPolledFirst) {
  const auto queue = Make(3);
  std::array<ems_completion, 3> out;
  Status failed;
  for (uint64_t round = 0; round < 5; ++round) {  // around the ring
    for (uint64_t tag = 0; tag < 3; ++tag) ASSERT_TRUE(queue->Begin());
    queue->End(7, OkStatus(), 70);
    queue->End(8, Miss(), 80);
    ASSERT_EQ(queue->Poll(out, &failed), 2u);
    EXPECT_EQ(out[0].tag, 7u);
    EXPECT_EQ(out[0].code, EMS_OK);
    EXPECT_EQ(out[0].value, 70u);
    EXPECT_EQ(out[1].tag, 8u);
    EXPECT_EQ(out[1].code, EMS_NOT_FOUND);
    EXPECT_EQ(out[1].value, 80u);
    queue->End(9, OkStatus(), 0);
    ASSERT_EQ(queue->Poll(out, &failed), 1u);
    EXPECT_EQ(out[0].tag, 9u);
  }
}

TEST(CompletionQueueTest, PlacesAreTakenUntilTheyArePolled) {
  const auto queue = Make(2);
  ASSERT_TRUE(queue->Begin());
  ASSERT_TRUE(queue->Begin());
  EXPECT_FALSE(queue->Begin());
  queue->End(1, OkStatus(), 0);
  EXPECT_FALSE(queue->Begin()) << "ended, but not polled";
  ems_completion one;
  Status failed;
  ASSERT_EQ(queue->Poll({&one, 1}, &failed), 1u);
  EXPECT_TRUE(queue->Begin());
  queue->Abandon();
  EXPECT_TRUE(queue->Begin());
  queue->Abandon();
  queue->Abandon();
}

TEST(CompletionQueueTest, TheDescriptorIsReadableAsLongAsSomethingWaits) {
  const auto queue = Make(4);
  EXPECT_FALSE(IsReadable(*queue));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue->Begin());
  EXPECT_FALSE(IsReadable(*queue));
  for (uint64_t i = 0; i < 3; ++i) queue->End(i, OkStatus(), 0);
  ems_completion one;
  Status failed;
  for (int left = 3; left > 0; --left) {
    EXPECT_TRUE(IsReadable(*queue)) << left;
    ASSERT_EQ(queue->Poll({&one, 1}, &failed), 1u);
  }
  EXPECT_FALSE(IsReadable(*queue));
  EXPECT_EQ(queue->Poll({&one, 1}, &failed), 0u);
}

TEST(CompletionQueueTest, TheLastFailureComesWithItsText) {
  const auto queue = Make(3);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(queue->Begin());
  queue->End(1, Error(StatusCode::kUnavailable, "first"), 0);
  queue->End(2, Error(StatusCode::kDataLoss, "second"), 0);
  queue->End(3, OkStatus(), 0);
  std::array<ems_completion, 3> out;
  Status failed;
  ASSERT_EQ(queue->Poll(out, &failed), 3u);
  EXPECT_EQ(failed, Error(StatusCode::kDataLoss, "second"));
}

TEST(CompletionQueueTest, NothingIsLostBetweenThreads) {
  constexpr uint64_t kEach = 20'000;
  const auto queue = Make(64);
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back("ender", [&, t] {
      for (uint64_t i = 0; i < kEach;) {
        if (!queue->Begin()) continue;
        queue->End(t * kEach + i, OkStatus(), i);
        ++i;
      }
    });
  }
  std::vector<bool> seen(3 * kEach);
  std::array<ems_completion, 7> out;
  Status failed;
  for (uint64_t taken = 0; taken < 3 * kEach;) {
    pollfd waiting{.fd = queue->fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 20'000), 1) << "a completion without a signal";
    const size_t got = queue->Poll(out, &failed);
    for (size_t i = 0; i < got; ++i) {
      EXPECT_FALSE(seen[out[i].tag]);
      seen[out[i].tag] = true;
    }
    taken += got;
  }
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(queue->Poll(out, &failed), 0u);
}

}  // namespace
}  // namespace ems::capi
