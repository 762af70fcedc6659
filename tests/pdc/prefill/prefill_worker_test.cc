// What must hold: a prompt's first token and KV are those that the engine alone computes, whatever
// the pool, the queue and the neighbours do; every task ends once; nothing stays held.
#include "pdc/prefill/prefill_worker.h"

#include <gtest/gtest.h>

#include <map>

#include "common/guarded.h"
#include "fabric/emulated/ring_pair.h"
#include "pdc/engine/generation.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

// The ends of tasks, by id.
class Ends {
 public:
  PrefillWorker::OnDone For(uint64_t id) {
    return [this, id](Result<PrefillOutcome> end) {
      auto ends = ends_.Lock();
      EXPECT_TRUE(ends->emplace(id, std::move(end)).second) << id << " has ended twice";
      came_.notify_all();
    };
  }
  Result<PrefillOutcome> Wait(uint64_t id) {
    auto ends = ends_.Lock();
    if (!ends.WaitFor(came_, seconds(20), [id](const auto& all) { return all.contains(id); }))
      return Error(StatusCode::kInternal, "{} has not ended", id);
    return ends->at(id);
  }
  bool Has(uint64_t id) {
    auto ends = ends_.Lock();
    return ends->contains(id);
  }

 private:
  Guarded<std::map<uint64_t, Result<PrefillOutcome>>> ends_;
  std::condition_variable came_;
};

class PrefillWorkerTest : public ::testing::Test {
 protected:
  std::unique_ptr<PrefillWorker> Make(uint32_t blocks, PrefillWorkerOptions options = {},
                                      context::BlockStore* store = nullptr) {
    options.kv = kKv;
    memory_.assign(KvArena::BlockBytes(alone_.model->config(), kKv) * blocks, std::byte{0});
    auto worker = PrefillWorker::Create(alone_.model, memory_, store, options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }
  static PrefillTask TaskOf(uint64_t id, size_t tokens) {
    return {.id = id, .prompt = RandomTokens(tokens, id)};
  }
  // What the engine computes alone.
  TokenId FirstTokenOf(const PrefillTask& task) {
    Generation generation(KvSequence(alone_.arena.get()), task.prompt, {.sampler = task.sampler});
    EXPECT_EQ(Prefill(alone_.engine.get(), &generation), OkStatus());
    return generation.answer().front();
  }

  EngineRig alone_{TinyConfig()};
  std::vector<std::byte> memory_;
  Ends ends_;
};

TEST_F(PrefillWorkerTest, FirstTokensAreThoseOfTheEngineAlone) {
  for (const uint32_t groups : {1U, 3U}) {
    FakeBlockStore store;
    Ends ends;
    PrefillWorkerOptions options;
    options.groups = groups;
    options.loaders = 2;
    options.step_tokens_max = 128;
    const auto worker = Make(256, options, &store);
    std::vector<PrefillTask> tasks;
    for (uint64_t id = 1; id <= 24; ++id) {
      tasks.push_back(TaskOf(id, 5 + 13 * id % 140));
      tasks.back().sampler = {.temperature = id % 2 == 0 ? 0.8F : 0.F, .seed = id};
      ASSERT_EQ(worker->Submit(tasks.back(), ends.For(id)), OkStatus());
    }
    for (const PrefillTask& task : tasks) {
      const auto end = ends.Wait(task.id);
      ASSERT_TRUE(end.ok()) << end.status();
      EXPECT_EQ(end->first, FirstTokenOf(task)) << task.id;
      EXPECT_EQ(end->prompt_tokens, task.prompt.size());
      EXPECT_TRUE(worker->Cancel(task.id)) << "lets its KV go";
    }
    EXPECT_EQ(worker->stats().here, 0U);
  }
}

TEST_F(PrefillWorkerTest, APromptThatWasSeenComesFromThePool) {
  FakeBlockStore store;
  const auto worker = Make(64, {}, &store);
  PrefillTask task = TaskOf(1, 100);
  ASSERT_EQ(worker->Submit(task, ends_.For(1)), OkStatus());
  const auto first = ends_.Wait(1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens, 0U);
  worker->Cancel(1);
  ASSERT_TRUE(ems::testing::Eventually([&] { return worker->cache_stats().saved_blocks >= 6; }));
  task.id = 2;
  ASSERT_EQ(worker->Submit(task, ends_.For(2)), OkStatus());
  const auto second = ends_.Wait(2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->cached_tokens, 96U);
  EXPECT_EQ(second->first, first->first);
  EXPECT_EQ(worker->stats().cached_tokens, 96U);
}

TEST_F(PrefillWorkerTest, ALongPromptTicksWhileItsStepGoesOn) {
  PrefillWorkerOptions options;
  options.engine.rows_max = 16;
  const auto worker = Make(64, options);
  ASSERT_EQ(worker->Submit(TaskOf(1, 160), ends_.For(1)), OkStatus());
  ASSERT_TRUE(ends_.Wait(1).ok());
  EXPECT_EQ(worker->stats().ticks, 10U);
  EXPECT_LE(worker->stats().steps, 1U);
}

TEST_F(PrefillWorkerTest, KvIsHandedOverAndGoesThen) {
  const auto worker = Make(16);
  auto ring = fabric::MakeRingPair({.entries = 4, .entry_bytes = 4 * kKiB});
  ASSERT_TRUE(ring.ok());
  const PrefillTask task = TaskOf(5, 70);
  ASSERT_EQ(worker->Submit(task, ends_.For(5)), OkStatus());
  KvSequence kv(alone_.arena.get());
  const auto arrival = KvArrival::Post(ring->receiver.get(), 5, &kv, 70);
  ASSERT_TRUE(arrival.ok());
  ASSERT_TRUE(ends_.Wait(5).ok());
  Status sent;
  {
    const Thread thread("send", [&] {
      sent = worker->HandOver(5, ring->sender.get(), 5, Deadline::After(seconds(10)));
    });
    EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  }
  EXPECT_EQ(sent, OkStatus());
  EXPECT_EQ(worker->stats().free_blocks, 16U);
  KvSequence computed(alone_.arena.get());
  alone_.Compute(&computed, task.prompt, LogitsOf::kNone);
  EXPECT_EQ(alone_.KvBytes(kv), alone_.KvBytes(computed));
  EXPECT_EQ(worker->HandOver(5, ring->sender.get(), 5, Deadline::After(seconds(1))).code(),
            StatusCode::kNotFound);
}

TEST_F(PrefillWorkerTest, PromptsWaitForRoomInTheirOrder) {
  const auto worker = Make(5);
  for (uint64_t id = 1; id <= 3; ++id)
    ASSERT_EQ(worker->Submit(TaskOf(id, 48), ends_.For(id)), OkStatus());
  ASSERT_TRUE(ends_.Wait(1).ok());
  EXPECT_FALSE(ends_.Has(2)) << "three of five blocks are kept";
  EXPECT_TRUE(worker->Cancel(1));
  ASSERT_TRUE(ends_.Wait(2).ok());
  EXPECT_TRUE(worker->Cancel(2));
  ASSERT_TRUE(ends_.Wait(3).ok());
}

TEST_F(PrefillWorkerTest, SmallPromptsDoNotKeepALargeOneOutWhoeverLoadsThem) {
  PrefillWorkerOptions options;
  options.loaders = 4;
  const auto worker = Make(5, options);
  ASSERT_EQ(worker->Submit(TaskOf(1, 16), ends_.For(1)), OkStatus());
  ASSERT_TRUE(ends_.Wait(1).ok());
  ASSERT_EQ(worker->Submit(TaskOf(2, 80), ends_.For(2)), OkStatus());
  // Each has room and each is kept; were they to pass, the large one would find none.
  for (uint64_t id = 3; id <= 6; ++id)
    ASSERT_EQ(worker->Submit(TaskOf(id, 16), ends_.For(id)), OkStatus());
  EXPECT_TRUE(worker->Cancel(1));
  ASSERT_TRUE(ends_.Wait(2).ok());
  EXPECT_TRUE(worker->Cancel(2));
  for (uint64_t id = 3; id <= 6; ++id) ASSERT_TRUE(ends_.Wait(id).ok()) << id;
}

TEST_F(PrefillWorkerTest, WhatIsKeptTooLongGoes) {
  const auto worker = Make(5);
  PrefillTask first = TaskOf(1, 80);
  first.deadline = Deadline::After(seconds(1));
  ASSERT_EQ(worker->Submit(first, ends_.For(1)), OkStatus());
  ASSERT_TRUE(ends_.Wait(1).ok());
  ASSERT_EQ(worker->Submit(TaskOf(2, 80), ends_.For(2)), OkStatus());
  EXPECT_TRUE(ends_.Wait(2).ok()) << "after the first one's deadline";
}

TEST_F(PrefillWorkerTest, TimeAndCancellationEndATaskWhereverItIs) {
  const auto worker = Make(5);
  ASSERT_EQ(worker->Submit(TaskOf(1, 80), ends_.For(1)), OkStatus());
  ASSERT_TRUE(ends_.Wait(1).ok());  // and keeps all the room
  PrefillTask late = TaskOf(2, 20);
  late.deadline = Deadline::After(milliseconds(50));
  ASSERT_EQ(worker->Submit(late, ends_.For(2)), OkStatus());
  PrefillTask behind = TaskOf(3, 20);
  behind.deadline = Deadline::After(milliseconds(20));
  ASSERT_EQ(worker->Submit(behind, ends_.For(3)), OkStatus());
  ASSERT_EQ(worker->Submit(TaskOf(4, 20), ends_.For(4)), OkStatus());
  EXPECT_EQ(ends_.Wait(2).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ends_.Wait(3).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(worker->Cancel(4));
  EXPECT_EQ(ends_.Wait(4).status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(worker->Cancel(4));
  EXPECT_TRUE(worker->Cancel(1));
  EXPECT_EQ(worker->stats().free_blocks, 5U);
  EXPECT_EQ(worker->stats().here, 0U);
}

TEST_F(PrefillWorkerTest, AStopEndsAllTasks) {
  auto worker = Make(5);
  for (uint64_t id = 1; id <= 6; ++id)
    ASSERT_EQ(worker->Submit(TaskOf(id, 80), ends_.For(id)), OkStatus());
  worker.reset();
  for (uint64_t id = 1; id <= 6; ++id) {
    ASSERT_TRUE(ends_.Has(id));
    const Status end = ends_.Wait(id).status();
    EXPECT_TRUE(end.ok() || end.code() == StatusCode::kCancelled) << end;
  }
}

TEST_F(PrefillWorkerTest, BadTasksAreRefused) {
  PrefillWorkerOptions options;
  options.queue_max = 1;
  const auto worker = Make(4, options);
  EXPECT_EQ(worker->Submit({.id = 1}, ends_.For(1)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(worker->Submit(TaskOf(1, 65), ends_.For(1)).code(), StatusCode::kInvalidArgument)
      << "larger than all of the memory";
  EXPECT_EQ(worker->Submit({.id = 1, .prompt = {999'999}}, ends_.For(1)).code(),
            StatusCode::kInvalidArgument);
  PrefillTask hot = TaskOf(1, 4);
  hot.sampler.temperature = -1;
  EXPECT_EQ(worker->Submit(hot, ends_.For(1)).code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(worker->Submit(TaskOf(1, 4), ends_.For(1)), OkStatus());
  EXPECT_EQ(worker->Submit(TaskOf(1, 4), ends_.For(2)).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(worker->Submit(TaskOf(2, 4), ends_.For(2)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ends_.Wait(1).ok());
  PrefillWorkerOptions none;
  none.groups = 0;
  EXPECT_EQ(PrefillWorker::Create(alone_.model, memory_, nullptr, none).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
