#include "integrations/c/internal/call_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

#include "common/thread_pool.h"

namespace ems::capi {
namespace {

constexpr Duration kLong = std::chrono::seconds(60);

// What a call did; outlives it.
struct Trace {
  std::atomic<int> runs{0}, refusals{0};
  std::atomic<ems_status> refused_with{EMS_OK};
  StopFlag go;       // its Run waits for it
  StopFlag running;  // set when Run is entered
};

class TracedCall final : public Call {
 public:
  explicit TracedCall(Trace* trace, bool waits = false, bool fails = false)
      : trace_(trace), waits_(waits), fails_(fails) {}
  Outcome Run(Duration) override {
    ++trace_->runs;
    trace_->running.Set();
    if (waits_) trace_->go.WaitFor(kLong);
    if (fails_) (void)std::string().at(1);
    return {.status = OkStatus(), .value = 42};
  }
  void Refuse(ems_status code) noexcept override {
    ++trace_->refusals;
    trace_->refused_with = code;
  }

 private:
  Trace* trace_;
  bool waits_, fails_;
};

class CallQueueTest : public ::testing::Test {
 protected:
  // With `threads` threads of which `queued` calls may wait for one.
  void Make(uint32_t depth, size_t threads = 1, size_t queued = 100) {
    pool_ = std::make_unique<ThreadPool>("calls", threads, queued);
    auto made = CallQueue::Create(
        depth, [this](std::function<void()>&& work) { return pool_->TrySubmit(std::move(work)); });
    ASSERT_TRUE(made.ok()) << made.status();
    queue_ = *std::move(made);
  }
  ems_completion Next() {
    ems_completion next{};
    pollfd waiting{.fd = queue_->completions().fd(), .events = POLLIN, .revents = 0};
    // A completion may be taken before its own signal comes, by the signal of one before it; then
    // there is nothing when that comes.
    while (::poll(&waiting, 1, 20'000) == 1) {
      if (queue_->completions().Poll({&next, 1}, &failed_) == 1) return next;
    }
    ADD_FAILURE() << "no completion";
    return next;
  }

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<CallQueue> queue_;  // ends before the threads
  Status failed_;
};

TEST_F(CallQueueTest, ACallRunsAndCompletesWithItsTagAndValue) {
  Trace trace;
  Make(4);
  ASSERT_EQ(queue_->Submit(11, kLong, std::make_unique<TracedCall>(&trace)), OkStatus());
  const ems_completion done = Next();
  EXPECT_EQ(done.tag, 11u);
  EXPECT_EQ(done.code, EMS_OK);
  EXPECT_EQ(done.value, 42u);
  EXPECT_EQ(trace.runs, 1);
  EXPECT_EQ(trace.refusals, 0);
}

TEST_F(CallQueueTest, ACallWhoseTimePassesBehindALongOneEndsInTimeWithoutARun) {
  Trace slow, late;
  Make(4);
  ASSERT_EQ(queue_->Submit(1, kLong, std::make_unique<TracedCall>(&slow, true)), OkStatus());
  ASSERT_TRUE(slow.running.WaitFor(kLong));
  const Deadline deadline = Deadline::After(std::chrono::milliseconds(30));
  ASSERT_EQ(queue_->Submit(2, std::chrono::milliseconds(30), std::make_unique<TracedCall>(&late)),
            OkStatus());
  const ems_completion done = Next();
  EXPECT_TRUE(deadline.Passed());
  EXPECT_EQ(done.tag, 2u);
  EXPECT_EQ(done.code, EMS_DEADLINE_EXCEEDED);
  EXPECT_EQ(late.refused_with, EMS_DEADLINE_EXCEEDED);
  slow.go.Set();
  EXPECT_EQ(Next().tag, 1u);
  queue_->Close();
  EXPECT_EQ(late.runs, 0);
  EXPECT_EQ(late.refusals, 1);
}

TEST_F(CallQueueTest, AFullQueueAndFullThreadsRefuseAtOnceWithoutACompletion) {
  Trace slow, other;
  Make(3, 1, 1);
  ASSERT_EQ(queue_->Submit(1, kLong, std::make_unique<TracedCall>(&slow, true)), OkStatus());
  ASSERT_TRUE(slow.running.WaitFor(kLong));
  ASSERT_EQ(queue_->Submit(2, kLong, std::make_unique<TracedCall>(&other)), OkStatus());
  const Status threads = queue_->Submit(3, kLong, std::make_unique<TracedCall>(&other));
  EXPECT_EQ(threads.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(threads).find("async_queue_max"), std::string_view::npos) << threads;
  slow.go.Set();
  EXPECT_EQ(Next().tag, 1u);
  EXPECT_EQ(Next().tag, 2u);
  EXPECT_EQ(other.runs, 1);

  Trace again;
  Make(1);
  ASSERT_EQ(queue_->Submit(4, kLong, std::make_unique<TracedCall>(&other)), OkStatus());
  const Status full = queue_->Submit(5, kLong, std::make_unique<TracedCall>(&again));
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(full).find("poll it"), std::string_view::npos) << full;
  EXPECT_EQ(Next().tag, 4u);
  EXPECT_EQ(queue_->Submit(6, kLong, std::make_unique<TracedCall>(&other)), OkStatus());
  EXPECT_EQ(Next().tag, 6u);
  EXPECT_EQ(again.runs, 0);
}

TEST_F(CallQueueTest, CloseCancelsWhatWaitsAndWaitsForWhatRuns) {
  Trace slow, waiting;
  Make(8);
  ASSERT_EQ(queue_->Submit(1, kLong, std::make_unique<TracedCall>(&slow, true)), OkStatus());
  ASSERT_TRUE(slow.running.WaitFor(kLong));
  for (uint64_t tag = 2; tag < 6; ++tag) {
    ASSERT_EQ(queue_->Submit(tag, kLong, std::make_unique<TracedCall>(&waiting)), OkStatus());
  }
  std::atomic<bool> closed{false};
  Thread closer("closer", [&] {
    queue_->Close();
    closed = true;
  });
  // The first refusal shows that Close is under way; the running call has not been released. From
  // here on none begins, although the thread gets free before Close has come to the others.
  ems_completion done = Next();
  EXPECT_EQ(done.code, EMS_CANCELLED);
  EXPECT_FALSE(closed);
  slow.go.Set();
  closer.Join();
  EXPECT_TRUE(closed);
  EXPECT_EQ(waiting.runs, 0);
  EXPECT_EQ(waiting.refusals, 4);
  EXPECT_EQ(waiting.refused_with, EMS_CANCELLED);
}

TEST_F(CallQueueTest, AnExceptionOfACallIsACode) {
  Trace trace;
  Make(2);
  ASSERT_EQ(queue_->Submit(9, kLong, std::make_unique<TracedCall>(&trace, false, true)),
            OkStatus());
  const ems_completion done = Next();
  EXPECT_EQ(done.tag, 9u);
  EXPECT_EQ(done.code, EMS_INTERNAL);
  EXPECT_EQ(trace.refused_with, EMS_INTERNAL);
}

// Deadlines, runs and refusals race; each call ends exactly once.
TEST_F(CallQueueTest, EveryCallEndsOnceWhateverComesFirst) {
  constexpr uint64_t kCalls = 3000;
  Make(kCalls, 2, kCalls);
  std::vector<Trace> traces(kCalls);
  for (uint64_t i = 0; i < kCalls; ++i) {
    ASSERT_EQ(queue_->Submit(i, std::chrono::microseconds(i % 7 * 100),
                             std::make_unique<TracedCall>(&traces[i])),
              OkStatus());
  }
  std::vector<int> ends(kCalls, 0);
  for (uint64_t taken = 0; taken < kCalls; ++taken) ++ends[Next().tag];
  queue_->Close();
  for (uint64_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(ends[i], 1) << i;
    EXPECT_EQ(traces[i].runs + traces[i].refusals, 1) << i;
  }
}

}  // namespace
}  // namespace ems::capi
