// What must hold: events come once and in order, a hand-over that nobody waits for any more does
// not hold up the others, and a dead link is told from one that has no room.
#include "pdc/prefill_port.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <optional>

#include "fabric/ring_pair.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using ems::testing::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

class EventLog {
 public:
  PrefillEvents Events() {
    return {.on_done =
                [this](Result<PrefillOutcome> outcome) {
                  auto told = told_.Lock();
                  EXPECT_FALSE(told->done);
                  told->done.emplace(std::move(outcome));
                  came_.notify_all();
                },
            .on_sent =
                [this](Status sent) {
                  auto told = told_.Lock();
                  EXPECT_TRUE(told->done);
                  EXPECT_FALSE(told->sent);
                  told->sent.emplace(std::move(sent));
                  came_.notify_all();
                }};
  }
  Result<PrefillOutcome> WaitDone() {
    auto told = told_.Lock();
    EXPECT_TRUE(told.WaitFor(came_, seconds(30), [](const Told& t) { return !!t.done; }));
    return told->done.value_or(Error(StatusCode::kInternal, "no event"));
  }
  Status WaitSent() {
    auto told = told_.Lock();
    EXPECT_TRUE(told.WaitFor(came_, seconds(30), [](const Told& t) { return !!t.sent; }));
    return told->sent.value_or(Error(StatusCode::kInternal, "no event"));
  }

 private:
  struct Told {
    std::optional<Result<PrefillOutcome>> done;
    std::optional<Status> sent;
  };
  Guarded<Told> told_;
  std::condition_variable came_;
};

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
    auto ring = fabric::MakeRingPair({.slots = 2, .slot_bytes = 4 * kKiB});
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
  EventLog log;
  ASSERT_EQ(port_->Start(TaskOf(9, 70), log.Events()), OkStatus());
  EXPECT_EQ((*arrival)->Wait(Deadline::After(seconds(10))), OkStatus());
  EXPECT_TRUE(log.WaitDone().ok());
  EXPECT_EQ(log.WaitSent(), OkStatus());
  EXPECT_EQ(port_->stats().handed_over, 1U);
  EXPECT_EQ(worker_->stats().here, 0U);
}

TEST_F(PrefillPortTest, WhatIsRefusedHasNoEvents) {
  EventLog log;
  EXPECT_EQ(port_->Start({.id = 1}, log.Events()).code(), StatusCode::kInvalidArgument);
  EventLog first, second;
  ASSERT_EQ(port_->Start(TaskOf(1, 20), first.Events()), OkStatus());
  EXPECT_EQ(port_->Start(TaskOf(1, 20), second.Events()).code(), StatusCode::kAlreadyExists);
  port_->Cancel(1);
  port_.reset();  // its events are over before those who hear them go
}

TEST_F(PrefillPortTest, SendsThatNobodyAwaitsEndWithTheirCancelAndHoldNobodyUp) {
  // As many as there are senders, and one behind them that is awaited.
  std::vector<std::unique_ptr<EventLog>> logs;
  for (uint64_t id = 1; id <= 2; ++id) {
    logs.push_back(std::make_unique<EventLog>());
    ASSERT_EQ(port_->Start(TaskOf(id, 40), logs.back()->Events()), OkStatus());
    ASSERT_TRUE(logs.back()->WaitDone().ok());
  }
  KvSequence kv(decode_.arena.get());
  const auto arrival = KvArrival::Post(receiver_.get(), 3, &kv, 40);
  ASSERT_TRUE(arrival.ok());
  EventLog last;
  ASSERT_EQ(port_->Start(TaskOf(3, 40), last.Events()), OkStatus());
  ASSERT_TRUE(last.WaitDone().ok());
  port_->Cancel(1);
  port_->Cancel(2);
  for (const auto& log : logs) EXPECT_EQ(log->WaitSent().code(), StatusCode::kCancelled);
  EXPECT_EQ((*arrival)->Wait(Deadline::After(seconds(10))), OkStatus());
  EXPECT_EQ(last.WaitSent(), OkStatus());
}

TEST_F(PrefillPortTest, AFullRingIsSaturatedAndAPeerThatIsGoneIsDead) {
  Open({.probe_every = milliseconds(5), .probe_timeout = seconds(5)});
  // Chunks that nobody awaits fill the two slots.
  std::vector<std::unique_ptr<EventLog>> logs;
  logs.push_back(std::make_unique<EventLog>());
  ASSERT_EQ(port_->Start(TaskOf(1, 40), logs.back()->Events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return port_->stats().probes_saturated > 0; }));
  EXPECT_EQ(port_->link(), OkStatus()) << "it lives";
  receiver_.reset();
  EXPECT_EQ(logs[0]->WaitSent().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(Eventually([&] { return !port_->link().ok(); }));
  EventLog late;
  EXPECT_EQ(port_->Start(TaskOf(2, 20), late.Events()).code(), StatusCode::kUnavailable);
}

TEST_F(PrefillPortTest, AReceiverThatAnswersProbesAndTakesNothingGivesTheKvBack) {
  Open({.senders = 1, .probe_every = milliseconds(5), .stall_limit = milliseconds(100)});
  EventLog logs[2];
  for (uint64_t id = 1; id <= 2; ++id)
    ASSERT_EQ(port_->Start(TaskOf(id, 40), logs[id - 1].Events()), OkStatus());
  for (EventLog& log : logs) {
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
  EventLog log;
  ASSERT_EQ(port_->Start(TaskOf(3, 40), log.Events()), OkStatus());
  EXPECT_EQ((*arrival)->Wait(Deadline::After(seconds(10))), OkStatus());
  EXPECT_EQ(log.WaitSent(), OkStatus());
}

TEST_F(PrefillPortTest, ItsEndEndsAll) {
  EventLog sending, computing;
  ASSERT_EQ(port_->Start(TaskOf(1, 40), sending.Events()), OkStatus());
  ASSERT_TRUE(sending.WaitDone().ok());
  ASSERT_EQ(port_->Start(TaskOf(2, 700), computing.Events()), OkStatus());
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
