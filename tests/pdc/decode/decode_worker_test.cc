// What must hold: an answer is the one that the engine alone gives, whatever the batch, the room,
// the peers and the neighbours do; every task ends once; nothing stays held.
#include "pdc/decode/decode_worker.h"

#include <gtest/gtest.h>

#include <random>

#include "common/thread_pool.h"
#include "pdc/prefill/local_prefill_peer.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/decode/recording_sink.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/pdc/prefill/flaky_prefill_peer.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using ems::testing::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::FlakyPrefillPeer;
using test::PrefillFault;
using test::RandomTokens;
using test::RecordingSink;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

ModelConfig DraftingConfig() {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  return config;
}

// Two prefill workers, and decode workers as a test wants them.
class DecodeWorkerTest : public ::testing::Test {
 protected:
  explicit DecodeWorkerTest(const ModelConfig& config = TinyConfig()) : alone_(config) {}

  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      prefill_memory_.emplace_back(KvArena::BlockBytes(alone_.model->config(), kKv) * 64);
      auto worker = PrefillWorker::Create(alone_.model, prefill_memory_.back(), &store_,
                                          {.kv = kKv, .queue_max = 64});
      ASSERT_TRUE(worker.ok()) << worker.status();
      prefills_.push_back(*std::move(worker));
      auto peer = LocalPrefillPeer::Create("prefill-" + std::to_string(i), prefills_.back().get(),
                                           {.ring = {.entries = 4, .entry_bytes = 4 * kKiB}});
      ASSERT_TRUE(peer.ok()) << peer.status();
      peers_.push_back(*std::move(peer));
    }
  }
  std::unique_ptr<DecodeWorker> Make(uint32_t blocks, DecodeWorkerOptions options = {},
                                     std::vector<PrefillPeer*> peers = {}) {
    options.kv = kKv;
    if (peers.empty()) peers = {peers_[0].get(), peers_[1].get()};
    memory_.assign(KvArena::BlockBytes(alone_.model->config(), kKv) * blocks, std::byte{0});
    auto worker = DecodeWorker::Create(alone_.model, memory_, &store_, peers, options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }
  static DecodeTask TaskOf(uint64_t id, size_t prompt, uint32_t tokens_max) {
    return {.id = id,
            .prompt = RandomTokens(prompt, id),
            .tokens_max = tokens_max,
            .sampler = {.temperature = id % 3 == 0 ? 0.F : 0.9F, .seed = id}};
  }
  // What the engine computes alone, without drafts.
  std::vector<TokenId> AnswerTo(const DecodeTask& task) {
    Generation generation(KvSequence(alone_.arena.get()), task.prompt,
                          {.sampler = task.sampler,
                           .tokens_max = task.tokens_max,
                           .stop_at_end = task.stop_at_end,
                           .draft = false});
    EXPECT_EQ(Prefill(alone_.engine.get(), &generation), OkStatus());
    Generation* const batch[] = {&generation};
    while (generation.finished() == FinishReason::kNone)
      EXPECT_EQ(DecodeStep(alone_.engine.get(), batch), OkStatus());
    return {generation.answer().begin(), generation.answer().end()};
  }
  void ExpectAnswer(const RecordingSink::Told& told, const DecodeTask& task) {
    ASSERT_TRUE(told.end->ok()) << told.end->status();
    EXPECT_EQ(told.tokens, AnswerTo(task)) << task.id;
    EXPECT_EQ(told.prompt_tokens, task.prompt.size());
  }
  void ServeAll(DecodeWorker* worker, const std::vector<DecodeTask>& tasks) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const DecodeTask& task : tasks) {
      sinks.push_back(std::make_shared<RecordingSink>());
      ASSERT_EQ(worker->Submit(task, sinks.back()), OkStatus());
    }
    for (size_t i = 0; i < tasks.size(); ++i) ExpectAnswer(sinks[i]->Wait(), tasks[i]);
  }
  std::vector<DecodeTask> ManyTasks(uint64_t count) {
    std::vector<DecodeTask> tasks;
    for (uint64_t id = 1; id <= count; ++id)
      tasks.push_back(TaskOf(id, 5 + 17 * id % 90, static_cast<uint32_t>(1 + 7 * id % 40)));
    return tasks;
  }

  EngineRig alone_;
  FakeBlockStore store_;
  std::vector<std::vector<std::byte>> prefill_memory_;
  std::vector<std::unique_ptr<PrefillWorker>> prefills_;
  std::vector<std::unique_ptr<LocalPrefillPeer>> peers_;
  std::vector<std::byte> memory_;
};

class DraftingDecodeWorkerTest : public DecodeWorkerTest {
 protected:
  DraftingDecodeWorkerTest() : DecodeWorkerTest(DraftingConfig()) {}
};

TEST_F(DecodeWorkerTest, AnswersAreThoseOfTheEngineAlone) {
  const auto worker = Make(256);
  ServeAll(worker.get(), ManyTasks(24));
  const DecodeWorkerStats stats = worker->stats();
  EXPECT_EQ(stats.finished, 24U);
  EXPECT_EQ(stats.admitted, 0U);
  EXPECT_EQ(stats.preempted, 0U);
  EXPECT_EQ(stats.free_blocks, 256U);
}

TEST_F(DraftingDecodeWorkerTest, GuessesOfTheMtpHeadChangeNothingButSteps) {
  const auto worker = Make(256);
  ServeAll(worker.get(), ManyTasks(12));
  EXPECT_GT(worker->stats().drafts, 0U);
}

TEST_F(DecodeWorkerTest, WhenBlocksRunOutTheYoungestIsComputedAnewToTheSameTokens) {
  // Each needs 8 blocks at its end and 2 at its beginning.
  const auto worker = Make(12);
  std::vector<DecodeTask> tasks;
  for (uint64_t id = 1; id <= 6; ++id) {
    tasks.push_back(TaskOf(id, 20, 100));
    tasks.back().stop_at_end = false;
  }
  ServeAll(worker.get(), tasks);
  EXPECT_GT(worker->stats().preempted, 0U);
  EXPECT_EQ(worker->stats().free_blocks, 12U);
}

TEST_F(DecodeWorkerTest, OneThatArrivesGivesWayToTheOlderThatDecodes) {
  for (const PrefillFault fault : {PrefillFault::kSilent, PrefillFault::kSilentSend}) {
    // The second start, which is the younger one's first, never ends by itself.
    FlakyPrefillPeer peer(peers_[0].get(),
                          [fault](int n) { return n == 1 ? fault : PrefillFault::kNone; });
    const auto worker = Make(9, {}, {&peer});
    DecodeTask older = TaskOf(1, 20, 108);  // 8 blocks at its end
    older.stop_at_end = false;
    const DecodeTask younger = TaskOf(2, 20, 12);  // 2 at its beginning
    const auto other = std::make_shared<RecordingSink>();
    const auto sink = std::make_shared<RecordingSink>([&](size_t count) {
      if (count != 5) return;
      ASSERT_EQ(worker->Submit(younger, other), OkStatus());
      if (fault == PrefillFault::kSilentSend) {
        ASSERT_TRUE(other->WaitForTokens(1));
      }
      EXPECT_TRUE(Eventually([&] { return peer.starts() >= 2; }));
    });
    ASSERT_EQ(worker->Submit(older, sink), OkStatus());
    ExpectAnswer(sink->Wait(), older);
    ExpectAnswer(other->Wait(), younger);
    EXPECT_EQ(worker->stats().preempted, 1U);
    EXPECT_EQ(worker->stats().lost, 0U);
    EXPECT_EQ(peer.starts(), 3) << "the older one was computed once";
    EXPECT_EQ(worker->stats().free_blocks, 9U);
  }
}

TEST_F(DecodeWorkerTest, ABatchOfOneServesAllOneAfterTheOther) {
  DecodeWorkerOptions options;
  options.batch_max = 1;
  const auto worker = Make(64, options);
  ServeAll(worker.get(), ManyTasks(5));
}

TEST_F(DecodeWorkerTest, WhatAPeerLosesIsAskedAnew) {
  for (const PrefillFault fault : {PrefillFault::kRefused, PrefillFault::kQueueFull,
                                   PrefillFault::kFailed, PrefillFault::kLostOnWay}) {
    FlakyPrefillPeer flaky(peers_[0].get(),
                           [fault](int n) { return n % 2 == 0 ? fault : PrefillFault::kNone; });
    DecodeWorkerOptions options;
    options.attempts_max = 20;  // every other start fails, whosever it is
    const auto worker = Make(256, options, {&flaky});
    ServeAll(worker.get(), ManyTasks(6));
    EXPECT_GT(flaky.starts(), 6);
    if (fault != PrefillFault::kQueueFull) {
      EXPECT_GT(worker->stats().lost, 0U);
    }
  }
}

TEST_F(DecodeWorkerTest, WhatASickPeerHadGoesToAnother) {
  FlakyPrefillPeer silent(peers_[0].get(), [](int) { return PrefillFault::kSilent; });
  FlakyPrefillPeer well(peers_[1].get(), [](int) { return PrefillFault::kNone; });
  const auto worker = Make(64, {}, {&silent, &well});
  const auto sink = std::make_shared<RecordingSink>();
  const DecodeTask task = TaskOf(1, 20, 12);
  ASSERT_EQ(worker->Submit(task, sink), OkStatus());
  ASSERT_TRUE(Eventually([&] { return silent.starts() > 0; }));
  silent.SetHealth(Error(StatusCode::kUnavailable, "stands still"));
  ExpectAnswer(sink->Wait(), task);
  EXPECT_EQ(well.starts(), 1);
}

TEST_F(DecodeWorkerTest, APeerThatDiesAfterTheFirstTokenLosesNoToken) {
  FlakyPrefillPeer silent(peers_[0].get(), [](int) { return PrefillFault::kSilentSend; });
  FlakyPrefillPeer well(peers_[1].get(), [](int) { return PrefillFault::kNone; });
  const auto worker = Make(64, {}, {&silent, &well});
  const auto sink = std::make_shared<RecordingSink>();
  DecodeTask task = TaskOf(1, 20, 12);
  task.stop_at_end = false;
  ASSERT_EQ(worker->Submit(task, sink), OkStatus());
  ASSERT_TRUE(sink->WaitForTokens(1));
  silent.SetHealth(Error(StatusCode::kUnavailable, "gone"));
  ExpectAnswer(sink->Wait(), task);
}

TEST_F(DecodeWorkerTest, WithoutAPeerThatIsWellItSaysSoAfterAWhile) {
  FlakyPrefillPeer sick(peers_[0].get(), [](int) { return PrefillFault::kNone; });
  sick.SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
  DecodeWorkerOptions options;
  options.peer_patience = milliseconds(50);
  const auto worker = Make(64, options, {&sick});
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_EQ(worker->Submit(TaskOf(1, 20, 4), sink), OkStatus());
  const auto told = sink->Wait();
  EXPECT_EQ(told.end->status().code(), StatusCode::kUnavailable);
  EXPECT_NE(told.end->status().message().find("unplugged"), std::string::npos);
  EXPECT_EQ(sick.starts(), 0);
  // The router is not to send more, but what has been begun is well.
  EXPECT_EQ(worker->health().status, OkStatus());
  EXPECT_EQ(worker->health().admits.code(), StatusCode::kUnavailable);
  EXPECT_NE(ToString(worker->health().admits).find("unplugged"), std::string::npos);
  sick.SetHealth(OkStatus());
  EXPECT_EQ(worker->health().admits, OkStatus());
}

TEST_F(DecodeWorkerTest, WithoutAPeerThatIsWellAllLosePatienceTogether) {
  FlakyPrefillPeer sick(peers_[0].get(), [](int) { return PrefillFault::kNone; });
  sick.SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
  DecodeWorkerOptions options;
  options.peer_patience = milliseconds(400);
  const auto worker = Make(64, options, {&sick});
  // One after the other they would take twice the time that each has.
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t id = 1; id <= 50; ++id) {
    DecodeTask task = TaskOf(id, 20, 4);
    task.deadline = Deadline::After(seconds(10));
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_EQ(worker->Submit(task, sinks.back()), OkStatus());
  }
  for (const auto& sink : sinks)
    EXPECT_EQ(sink->Wait().end->status().code(), StatusCode::kUnavailable);
}

TEST_F(DecodeWorkerTest, CancelEndsATaskWhereverItIs) {
  for (const PrefillFault fault :
       {PrefillFault::kNone, PrefillFault::kSilent, PrefillFault::kSilentSend}) {
    FlakyPrefillPeer peer(peers_[0].get(), [fault](int) { return fault; });
    DecodeWorkerOptions options;
    options.batch_max = 1;
    const auto worker = Make(64, options, {&peer});
    const auto first = std::make_shared<RecordingSink>(),
               second = std::make_shared<RecordingSink>();
    DecodeTask task = TaskOf(1, 20, 900);
    task.stop_at_end = false;
    ASSERT_EQ(worker->Submit(task, first), OkStatus());
    ASSERT_EQ(worker->Submit(TaskOf(2, 20, 4), second), OkStatus());
    if (fault == PrefillFault::kSilent) {
      ASSERT_TRUE(Eventually([&] { return peer.starts() > 0; }));
    } else {
      ASSERT_TRUE(first->WaitForTokens(fault == PrefillFault::kNone ? 3 : 1));
    }
    worker->Cancel(2);  // it waits
    EXPECT_EQ(second->Wait().end->status().code(), StatusCode::kCancelled);
    worker->Cancel(1);
    EXPECT_EQ(first->Wait().end->status().code(), StatusCode::kCancelled);
    worker->Cancel(77);
    EXPECT_EQ(worker->stats().free_blocks, 64U);
    EXPECT_EQ(worker->stats().admitted, 0U);
  }
}

TEST_F(DecodeWorkerTest, ASinkMayCancelWithinItsEvents) {
  const auto worker = Make(64);
  const auto sink = std::make_shared<RecordingSink>([&](size_t count) {
    if (count == 5) worker->Cancel(1);
  });
  DecodeTask task = TaskOf(1, 20, 900);
  task.stop_at_end = false;
  ASSERT_EQ(worker->Submit(task, sink), OkStatus());
  const auto told = sink->Wait();
  EXPECT_EQ(told.end->status().code(), StatusCode::kCancelled);
  EXPECT_EQ(told.tokens.size(), 5U);
}

TEST_F(DecodeWorkerTest, ADeadlineEndsATaskWhereverItIs) {
  for (const PrefillFault fault : {PrefillFault::kSilent, PrefillFault::kSilentSend}) {
    FlakyPrefillPeer peer(peers_[0].get(), [fault](int) { return fault; });
    const auto worker = Make(64, {}, {&peer});
    const auto sink = std::make_shared<RecordingSink>();
    DecodeTask task = TaskOf(1, 20, 4);
    task.deadline = Deadline::After(milliseconds(300));
    ASSERT_EQ(worker->Submit(task, sink), OkStatus());
    EXPECT_EQ(sink->Wait().end->status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(worker->stats().free_blocks, 64U);
  }
}

TEST_F(DecodeWorkerTest, WhatWasDecodedIsInThePoolForTheNextTurn) {
  for (const auto policy : {context::SavePolicy::kAll, context::SavePolicy::kFinalResponse,
                            context::SavePolicy::kPrefillOnly}) {
    DecodeWorkerOptions options;
    options.cache.policy = policy;
    const auto worker = Make(64, options);
    DecodeTask task = TaskOf(30 + static_cast<uint64_t>(policy), 40, 60);
    task.stop_at_end = false;
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_EQ(worker->Submit(task, sink), OkStatus());
    const auto told = sink->Wait();
    ASSERT_TRUE(told.end->ok());
    const bool saves = policy != context::SavePolicy::kPrefillOnly;
    // 99 of 100 tokens have KV: 6 full blocks, of which prefill saved 2.
    ASSERT_TRUE(Eventually([&] { return !saves || worker->cache_stats().saved_blocks >= 4; }));
    DecodeTask turn = TaskOf(task.id + 10, 0, 3);
    turn.prompt = task.prompt;
    turn.prompt.insert(turn.prompt.end(), told.tokens.begin(), told.tokens.end());
    const std::vector<TokenId> more = RandomTokens(9, 99);
    turn.prompt.insert(turn.prompt.end(), more.begin(), more.end());
    ASSERT_TRUE(Eventually([&] {
      return prefills_[0]->cache_stats().saved_blocks + prefills_[1]->cache_stats().saved_blocks >=
             2;
    }));
    const auto next = std::make_shared<RecordingSink>();
    ASSERT_EQ(worker->Submit(turn, next), OkStatus());
    const auto then = next->Wait();
    ExpectAnswer(then, turn);
    EXPECT_EQ(then.cached_tokens, saves ? 96U : 32U) << NameOf(policy);
  }
}

TEST_F(DecodeWorkerTest, WhatCanNeverBeServedIsRefused) {
  DecodeWorkerOptions options;
  options.queue_max = 1;
  FlakyPrefillPeer silent(peers_[0].get(), [](int) { return PrefillFault::kSilent; });
  const auto worker = Make(4, options, {&silent});
  const auto sink = std::make_shared<RecordingSink>();
  const auto code = [&](const DecodeTask& task) { return worker->Submit(task, sink).code(); };
  EXPECT_EQ(code(TaskOf(1, 0, 5)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TaskOf(1, 5, 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TaskOf(1, 40, 25)), StatusCode::kInvalidArgument);
  DecodeTask strange = TaskOf(1, 5, 5);
  strange.prompt[2] = 264;
  EXPECT_EQ(code(strange), StatusCode::kInvalidArgument);
  strange = TaskOf(1, 5, 5);
  strange.sampler.temperature = -1;
  EXPECT_EQ(code(strange), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(TaskOf(1, 40, 24)), StatusCode::kOk);
  EXPECT_EQ(code(TaskOf(1, 5, 5)), StatusCode::kAlreadyExists);
  EXPECT_EQ(code(TaskOf(2, 5, 5)), StatusCode::kResourceExhausted);
  EXPECT_FALSE(DecodeWorker::Create(alone_.model, memory_, nullptr, {}, {}).ok());
}

TEST_F(DecodeWorkerTest, AnAnswerThatFillsAllThereIsIsGiven) {
  const auto worker = Make(4);
  DecodeTask task = TaskOf(1, 40, 24);
  task.stop_at_end = false;
  ServeAll(worker.get(), {task});
}

TEST_F(DecodeWorkerTest, ItsEndIsTheEndOfAllTasks) {
  FlakyPrefillPeer peer(peers_[0].get(), [](int n) {
    return n == 0   ? PrefillFault::kNone
           : n == 1 ? PrefillFault::kSilent
                    : PrefillFault::kSilentSend;
  });
  DecodeWorkerOptions options;
  options.batch_max = 3;
  auto worker = Make(64, options, {&peer});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t id = 1; id <= 5; ++id) {
    sinks.push_back(std::make_shared<RecordingSink>());
    DecodeTask task = TaskOf(id, 20, 500);
    task.stop_at_end = false;
    ASSERT_EQ(worker->Submit(task, sinks.back()), OkStatus());
  }
  ASSERT_TRUE(sinks[0]->WaitForTokens(2));
  ASSERT_TRUE(sinks[2]->WaitForTokens(1));
  worker.reset();
  for (const auto& sink : sinks)
    EXPECT_EQ(sink->Wait().end->status().code(), StatusCode::kUnavailable);
}

TEST_F(DecodeWorkerTest, InAStormEveryTaskEndsOnceWithNoWrongToken) {
  std::atomic<uint64_t> dice{1};
  FlakyPrefillPeer one(peers_[0].get(), [&](int) {
    const uint64_t roll = dice.fetch_add(0x9E3779B97F4A7C15ULL) >> 60;
    return roll < 2    ? PrefillFault::kFailed
           : roll == 2 ? PrefillFault::kLostOnWay
           : roll == 3 ? PrefillFault::kQueueFull
                       : PrefillFault::kNone;
  });
  DecodeWorkerOptions options;
  options.attempts_max = 20;
  options.batch_max = 8;
  const auto worker = Make(40, options, {&one, peers_[1].get()});
  std::vector<Thread> threads;
  Guarded<std::vector<std::pair<DecodeTask, RecordingSink::Told>>> served;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back("storm", [&, t] {
      std::mt19937_64 random(t);
      for (uint64_t i = 0; i < 12; ++i) {
        const DecodeTask task =
            TaskOf(1 + t * 100 + i, 1 + random() % 80, static_cast<uint32_t>(1 + random() % 40));
        const auto sink = std::make_shared<RecordingSink>();
        EXPECT_EQ(worker->Submit(task, sink), OkStatus());
        if (random() % 4 == 0) {
          (void)sink->WaitForTokens(random() % 10);
          worker->Cancel(task.id);
        }
        auto all = served.Lock();
        all->emplace_back(task, RecordingSink::Told{});
        all.Unlock();
        RecordingSink::Told told = sink->Wait();
        all = served.Lock();
        for (auto& [known, slot] : *all)
          if (known.id == task.id) slot = told;
      }
    });
  }
  threads.clear();
  auto all = served.Lock();
  for (const auto& [task, told] : *all) {
    const std::vector<TokenId> right = AnswerTo(task);
    if (told.end->ok()) {
      EXPECT_EQ(told.tokens, right);
    } else {
      EXPECT_EQ(told.end->status().code(), StatusCode::kCancelled) << told.end->status();
      ASSERT_LE(told.tokens.size(), right.size());
      EXPECT_TRUE(std::equal(told.tokens.begin(), told.tokens.end(), right.begin()));
    }
  }
  EXPECT_EQ(worker->stats().admitted, 0U);
}

}  // namespace
}  // namespace ems::pdc
