// What must hold: events come once and in order, a hand-over that nobody waits for any more does
// not hold up the others, and a dead link is told from one that has no room.
#include "pdc/prefill/prefill_port.h"

#include <gtest/gtest.h>

#include "fabric/emulated/ring_pair.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"
#include "tests/support/prefill_log.h"

namespace ems::pdc {
namespace {

using ems::testing::Eventually;
using ems::testing::PrefillLog;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

class PrefillPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.resize(KvArena::BlockBytes(decode_.model->config(), kKv) * 64);
    auto worker = PrefillWorker::Create(decode_.model, memory_, nullptr, {.kv = kKv});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    Open({});
  }
  void Open(const PrefillPortOptions& options) {
    port_.reset();
    auto ring = fabric::MakeRingPair({.entries = 2, .entry_bytes = 4 * kKiB});
    ASSERT_TRUE(ring.ok()) << ring.status();
    receiver_ = std::move(ring->receiver);
    auto port = PrefillPort::Create(worker_.get(), std::move(ring->sender), options);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
  }
  static PrefillTask TaskOf(uint64_t id, size_t tokens) {
    return {.id = id, .prompt = RandomTokens(tokens, id)};
  }

  EngineRig decode_{TinyConfig()};
  std::vector<std::byte> memory_;
  std::unique_ptr<PrefillWorker> worker_;
  std::unique_ptr<fabric::RingReceiver> receiver_;
  std::unique_ptr<PrefillPort> port_;
};

TEST_F(PrefillPortTest, TheFirstTokenThenTheKv) {
  KvSequence kv(decode_.arena.get());
  const auto arrival = KvArrival::Post(receiver_.get(), 9, &kv, 70);
  ASSERT_TRUE(arrival.ok());
  PrefillLog log;
  ASSERT_EQ(port_->Start(TaskOf(9, 70), log.events()), OkStatus());
  EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  EXPECT_TRUE(log.WaitDone().ok());
  EXPECT_EQ(log.WaitSent(), OkStatus());
  EXPECT_EQ(port_->stats().handed_over, 1U);
  EXPECT_EQ(worker_->stats().here, 0U);
}

TEST_F(PrefillPortTest, WhatIsRefusedHasNoEvents) {
  PrefillLog log;
  EXPECT_EQ(port_->Start({.id = 1}, log.events()).code(), StatusCode::kInvalidArgument);
  PrefillLog first, second;
  ASSERT_EQ(port_->Start(TaskOf(1, 20), first.events()), OkStatus());
  EXPECT_EQ(port_->Start(TaskOf(1, 20), second.events()).code(), StatusCode::kAlreadyExists);
  port_->Cancel(1);
  port_.reset();  // its events are over before those who hear them go
}

TEST_F(PrefillPortTest, SendsThatNobodyAwaitsEndWithTheirCancelAndHoldNobodyUp) {
  // As many as there are senders, and one behind them that is awaited.
  std::vector<std::unique_ptr<PrefillLog>> logs;
  for (uint64_t id = 1; id <= 2; ++id) {
    logs.push_back(std::make_unique<PrefillLog>());
    ASSERT_EQ(port_->Start(TaskOf(id, 40), logs.back()->events()), OkStatus());
    ASSERT_TRUE(logs.back()->WaitDone().ok());
  }
  KvSequence kv(decode_.arena.get());
  const auto arrival = KvArrival::Post(receiver_.get(), 3, &kv, 40);
  ASSERT_TRUE(arrival.ok());
  PrefillLog last;
  ASSERT_EQ(port_->Start(TaskOf(3, 40), last.events()), OkStatus());
  ASSERT_TRUE(last.WaitDone().ok());
  port_->Cancel(1);
  port_->Cancel(2);
  for (const auto& log : logs) EXPECT_EQ(log->WaitSent().code(), StatusCode::kCancelled);
  EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  EXPECT_EQ(last.WaitSent(), OkStatus());
}

TEST_F(PrefillPortTest, AFullRingIsSaturatedAndAPeerThatIsGoneIsDead) {
  Open({.probe_every = milliseconds(5), .probe_timeout = seconds(5)});
  // Chunks that nobody awaits fill the two slots.
  std::vector<std::unique_ptr<PrefillLog>> logs;
  logs.push_back(std::make_unique<PrefillLog>());
  ASSERT_EQ(port_->Start(TaskOf(1, 40), logs.back()->events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return port_->stats().probes_saturated > 0; }));
  EXPECT_EQ(port_->link(), OkStatus()) << "it lives";
  receiver_.reset();
  EXPECT_EQ(logs[0]->WaitSent().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(Eventually([&] { return !port_->link().ok(); }));
  PrefillLog late;
  EXPECT_EQ(port_->Start(TaskOf(2, 20), late.events()).code(), StatusCode::kUnavailable);
}

TEST_F(PrefillPortTest, AReceiverThatAnswersProbesAndTakesNothingGivesTheKvBack) {
  Open({.senders = 1, .probe_every = milliseconds(5), .stall_limit = milliseconds(100)});
  PrefillLog logs[2];
  for (uint64_t id = 1; id <= 2; ++id)
    ASSERT_EQ(port_->Start(TaskOf(id, 40), logs[id - 1].events()), OkStatus());
  for (PrefillLog& log : logs) {
    EXPECT_TRUE(log.WaitDone().ok());
    EXPECT_EQ(log.WaitSent().code(), StatusCode::kUnavailable);
  }
  ASSERT_TRUE(Eventually([&] { return port_->stats().probes > 0; }));
  EXPECT_EQ(port_->link(), OkStatus()) << "it lives";
  EXPECT_EQ(port_->stats().stalled, 2U);
  EXPECT_EQ(port_->stats().failed, 2U);
  EXPECT_EQ(worker_->stats().here, 0U);
  EXPECT_EQ(worker_->stats().free_blocks, 64U);

  // It receives again: the next one is none the worse for it.
  KvSequence kv(decode_.arena.get());
  const auto arrival = KvArrival::Post(receiver_.get(), 3, &kv, 40);
  ASSERT_TRUE(arrival.ok());
  EXPECT_EQ(*(*arrival)->Poll(Duration(0)), false);
  PrefillLog log;
  ASSERT_EQ(port_->Start(TaskOf(3, 40), log.events()), OkStatus());
  EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  EXPECT_EQ(log.WaitSent(), OkStatus());
}

TEST_F(PrefillPortTest, ItsEndEndsAll) {
  PrefillLog sending, computing;
  ASSERT_EQ(port_->Start(TaskOf(1, 40), sending.events()), OkStatus());
  ASSERT_TRUE(sending.WaitDone().ok());
  ASSERT_EQ(port_->Start(TaskOf(2, 700), computing.events()), OkStatus());
  port_.reset();
  EXPECT_FALSE(sending.WaitSent().ok());
  if (computing.WaitDone().ok()) {
    EXPECT_FALSE(computing.WaitSent().ok());
  }
  EXPECT_EQ(worker_->stats().here, 0U);
}

TEST_F(PrefillPortTest, OptionsOutOfRangeAreRefused) {
  for (const PrefillPortOptions& options :
       {PrefillPortOptions{.senders = 0}, PrefillPortOptions{.senders = 17},
        PrefillPortOptions{.probe_timeout = Duration(0)},
        PrefillPortOptions{.stall_limit = Duration(0)}}) {
    auto ring = fabric::MakeRingPair({});
    ASSERT_TRUE(ring.ok());
    EXPECT_EQ(PrefillPort::Create(worker_.get(), std::move(ring->sender), options).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ems::pdc
