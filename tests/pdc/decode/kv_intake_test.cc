// What must hold: each job ends once, whatever the peer says or does not say, and in whatever
// order.
#include "pdc/decode/kv_intake.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "fabric/emulated/ring_pair.h"
#include "pdc/prefill/local_prefill_peer.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/pdc/prefill/flaky_prefill_peer.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::FlakyPrefillPeer;
using test::PrefillFault;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

// What one job was told.
class JobLog {
 public:
  explicit JobLog(bool wants_kv = true) : wants_kv_(wants_kv) {}
  IntakeEvents Events() {
    return {.on_first =
                [this](const PrefillOutcome&) {
                  Tell([](Told* told) { ++told->firsts; });
                  return wants_kv_;
                },
            .on_arrived = [this] { Tell([](Told* told) { ++told->arrived; }); },
            .on_lost =
                [this](Status why) {
                  Tell([&](Told* told) { told->lost.push_back(std::move(why)); });
                }};
  }
  struct Told {
    int firsts = 0, arrived = 0;
    std::vector<Status> lost;
  };
  Told WaitForEnd() {
    return WaitFor([](const Told& told) { return told.arrived > 0 || !told.lost.empty(); });
  }
  Told WaitForFirst() {
    return WaitFor([](const Told& told) { return told.firsts > 0; });
  }

 private:
  template <typename Ready>
  Told WaitFor(Ready ready) {
    auto told = told_.Lock();
    EXPECT_TRUE(told.WaitFor(came_, seconds(30), ready));
    return *told;
  }
  template <typename Change>
  void Tell(Change change) {
    auto told = told_.Lock();
    change(&*told);
    EXPECT_LE(told->firsts, 1);
    EXPECT_LE(static_cast<size_t>(told->arrived) + told->lost.size(), 1U) << "it has ended twice";
    came_.notify_all();
  }
  const bool wants_kv_;
  Guarded<Told> told_;
  std::condition_variable came_;
};

class KvIntakeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.resize(KvArena::BlockBytes(decode_.model->config(), kKv) * 64);
    auto worker = PrefillWorker::Create(decode_.model, memory_, nullptr, {.kv = kKv});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    auto peer = LocalPrefillPeer::Create("prefill", worker_.get(),
                                         {.ring = {.entries = 4, .entry_bytes = 4 * kKiB}});
    ASSERT_TRUE(peer.ok()) << peer.status();
    peer_ = *std::move(peer);
  }
  static PrefillTask TaskOf(uint64_t id, size_t tokens) {
    return {.id = id, .prompt = RandomTokens(tokens, id)};
  }

  EngineRig decode_{TinyConfig()};
  std::vector<std::byte> memory_;
  std::unique_ptr<PrefillWorker> worker_;
  std::unique_ptr<LocalPrefillPeer> peer_;
};

TEST_F(KvIntakeTest, FirstTheTokenThenTheKv) {
  KvIntake intake(peer_.get());
  std::vector<std::unique_ptr<KvSequence>> kvs;
  std::vector<std::unique_ptr<JobLog>> logs;
  for (uint64_t id = 1; id <= 8; ++id) {
    kvs.push_back(std::make_unique<KvSequence>(decode_.arena.get()));
    logs.push_back(std::make_unique<JobLog>());
    intake.Begin(TaskOf(id, 20 + id), kvs.back().get(), logs.back()->Events());
  }
  for (uint64_t id = 1; id <= 8; ++id) {
    const auto told = logs[id - 1]->WaitForEnd();
    EXPECT_EQ(told.firsts, 1);
    EXPECT_EQ(told.arrived, 1);
    const PrefillTask task = TaskOf(id, 20 + id);
    KvSequence alone(decode_.arena.get());
    decode_.Compute(&alone, task.prompt, LogitsOf::kNone);
    EXPECT_EQ(decode_.KvBytes(*kvs[id - 1]), decode_.KvBytes(alone));
  }
  EXPECT_EQ(intake.outstanding_tokens(), 0U);
}

TEST_F(KvIntakeTest, WhoWantsNoKvGetsTheBlocksBackAndThePeerLetsGo) {
  KvIntake intake(peer_.get());
  KvSequence kv(decode_.arena.get());
  JobLog log(false);
  intake.Begin(TaskOf(1, 50), &kv, log.Events());
  const auto told = log.WaitForEnd();
  EXPECT_EQ(told.firsts, 1);
  ASSERT_EQ(told.lost.size(), 1U);
  EXPECT_EQ(told.lost[0].code(), StatusCode::kCancelled);
  EXPECT_TRUE(ems::testing::Eventually([&] { return worker_->stats().here == 0; }));
}

TEST_F(KvIntakeTest, WhatThePeerLosesIsTold) {
  for (const auto& [fault, code, firsts] :
       {std::tuple(PrefillFault::kRefused, StatusCode::kUnavailable, 0),
        std::tuple(PrefillFault::kQueueFull, StatusCode::kResourceExhausted, 0),
        std::tuple(PrefillFault::kFailed, StatusCode::kUnavailable, 0),
        std::tuple(PrefillFault::kLostOnWay, StatusCode::kUnavailable, 1)}) {
    FlakyPrefillPeer flaky(peer_.get(), [fault = fault](int) { return fault; });
    KvIntake intake(&flaky);
    KvSequence kv(decode_.arena.get());
    JobLog log;
    intake.Begin(TaskOf(1, 50), &kv, log.Events());
    const auto told = log.WaitForEnd();
    EXPECT_EQ(told.firsts, firsts);
    ASSERT_EQ(told.lost.size(), 1U);
    EXPECT_EQ(told.lost[0].code(), code);
    EXPECT_EQ(intake.outstanding_tokens(), 0U);
  }
}

TEST_F(KvIntakeTest, CancelDeadlineSicknessAndTheEndReachASilentPeer) {
  for (const PrefillFault fault : {PrefillFault::kSilent, PrefillFault::kSilentSend}) {
    FlakyPrefillPeer silent(peer_.get(), [fault](int) { return fault; });
    auto intake = std::make_unique<KvIntake>(&silent);
    std::vector<std::unique_ptr<KvSequence>> kvs;
    std::vector<std::unique_ptr<JobLog>> logs;
    const auto begin = [&](uint64_t id, Duration time) {
      kvs.push_back(std::make_unique<KvSequence>(decode_.arena.get()));
      logs.push_back(std::make_unique<JobLog>());
      PrefillTask task = TaskOf(id, 50);
      task.deadline = Deadline::After(time);
      intake->Begin(std::move(task), kvs.back().get(), logs.back()->Events());
      if (fault == PrefillFault::kSilentSend) logs.back()->WaitForFirst();
    };
    begin(1, seconds(60));
    intake->Cancel(1);
    EXPECT_EQ(logs[0]->WaitForEnd().lost.at(0).code(), StatusCode::kCancelled);
    begin(2, milliseconds(500));
    EXPECT_EQ(logs[1]->WaitForEnd().lost.at(0).code(), StatusCode::kDeadlineExceeded);
    begin(3, seconds(60));
    silent.SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
    EXPECT_EQ(logs[2]->WaitForEnd().lost.at(0).code(), StatusCode::kUnavailable);
    silent.SetHealth(OkStatus());
    begin(4, seconds(60));
    intake.reset();
    EXPECT_EQ(logs[3]->WaitForEnd().lost.at(0).code(), StatusCode::kCancelled);
  }
}

TEST_F(KvIntakeTest, TheOneWithTheLeastToDoIsChosenAndTheLastOneOnlyWithoutAnother) {
  FlakyPrefillPeer first(peer_.get(), [](int) { return PrefillFault::kSilent; });
  FlakyPrefillPeer second(peer_.get(), [](int) { return PrefillFault::kSilent; });
  std::vector<std::unique_ptr<KvIntake>> intakes;
  intakes.push_back(std::make_unique<KvIntake>(&first));
  intakes.push_back(std::make_unique<KvIntake>(&second));
  EXPECT_EQ(ChooseIntake(intakes, nullptr).value_or(nullptr), intakes[0].get());
  EXPECT_EQ(ChooseIntake(intakes, intakes[0].get()).value_or(nullptr), intakes[1].get());
  EXPECT_EQ(ChooseIntake(intakes, intakes[1].get()).value_or(nullptr), intakes[0].get());
  KvSequence kv(decode_.arena.get());
  JobLog log;
  intakes[0]->Begin(TaskOf(1, 30), &kv, log.Events());
  EXPECT_EQ(ChooseIntake(intakes, nullptr).value_or(nullptr), intakes[1].get());
  second.SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
  EXPECT_EQ(ChooseIntake(intakes, intakes[0].get()).value_or(nullptr), intakes[0].get());
  first.SetHealth(Error(StatusCode::kUnavailable, "unplugged"));
  const Status none = ChooseIntake(intakes, nullptr).status();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_NE(ToString(none).find("unplugged"), std::string::npos);
  EXPECT_EQ(log.WaitForEnd().lost.size(), 1U);
}

TEST_F(KvIntakeTest, APeerThatIsLateToAnswerKeepsItsJobs) {
  FlakyPrefillPeer silent(peer_.get(), [](int) { return PrefillFault::kSilent; });
  silent.SetHealth(Error(StatusCode::kDeadlineExceeded, "a pulse was missed"));
  KvIntake intake(&silent);
  KvSequence kv(decode_.arena.get());
  JobLog log;
  PrefillTask task = TaskOf(1, 50);
  task.deadline = Deadline::After(milliseconds(200));
  intake.Begin(std::move(task), &kv, log.Events());
  EXPECT_EQ(log.WaitForEnd().lost.at(0).code(), StatusCode::kDeadlineExceeded);
}

// Lets a test in before a job is passed on.
class SlowPeer final : public PrefillPeer {
 public:
  SlowPeer(PrefillPeer* real, std::function<void(uint64_t id)> before_start)
      : real_(real), before_start_(std::move(before_start)) {}
  const std::string& name() const override { return real_->name(); }
  PrefillHealth health() override { return real_->health(); }
  std::shared_ptr<fabric::RingReceiver> ring() override { return real_->ring(); }
  Status Start(PrefillTask task, PrefillEvents events) override {
    before_start_(task.id);
    return real_->Start(std::move(task), std::move(events));
  }
  void Cancel(uint64_t id) override { real_->Cancel(id); }

 private:
  PrefillPeer* const real_;
  const std::function<void(uint64_t id)> before_start_;
};

// Nobody would receive its KV: it would keep blocks there, and the ring, until its deadline.
TEST_F(KvIntakeTest, AJobThatEndsBeforeThePeerHasItEndsThereToo) {
  KvIntake* intake = nullptr;
  JobLog log;
  SlowPeer slow(peer_.get(), [&](uint64_t id) {
    intake->Cancel(id);
    EXPECT_EQ(log.WaitForEnd().lost.size(), 1U);
  });
  KvIntake watched(&slow);
  intake = &watched;
  KvSequence kv(decode_.arena.get());
  watched.Begin(TaskOf(1, 50), &kv, log.Events());
  EXPECT_TRUE(ems::testing::Eventually([&] { return worker_->stats().here == 0; }));
}

// Has a ring, and leaves it to the test what is sent and said.
class RingPeer final : public PrefillPeer {
 public:
  RingPeer() {
    auto pair = fabric::MakeRingPair({.entries = 4, .entry_bytes = 4 * kKiB});
    EXPECT_TRUE(pair.ok()) << pair.status();
    sender = std::move(pair->sender);
    receiver_ = std::move(pair->receiver);
  }
  const std::string& name() const override { return name_; }
  PrefillHealth health() override { return {}; }
  std::shared_ptr<fabric::RingReceiver> ring() override { return receiver_; }
  Status Start(PrefillTask, PrefillEvents events_of_task) override {
    events = std::move(events_of_task);
    return OkStatus();
  }
  void Cancel(uint64_t) override {}

  std::unique_ptr<fabric::RingSender> sender;
  PrefillEvents events;  // of the last task

 private:
  const std::string name_ = "ring";
  std::shared_ptr<fabric::RingReceiver> receiver_;
};

// A job ends, its KV comes nevertheless, and its sender abandons it: the next job is not lost for
// it.
TEST_F(KvIntakeTest, ASenderThatWasStuckSendsTheNextJobsKvBeforeItsTokenIsHeard) {
  RingPeer peer;
  KvIntake intake(&peer);
  const PrefillTask task = TaskOf(1, 50);
  KvSequence computed(decode_.arena.get());
  decode_.Compute(&computed, task.prompt, LogitsOf::kNone);
  const auto send = [&](HandoffId id, Duration limit) {
    return SendKv(peer.sender.get(), id, computed, Deadline::After(seconds(30)),
                  {.stall_limit = limit});
  };
  EXPECT_EQ(send(7, milliseconds(20)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(send(8, seconds(10)).code(), StatusCode::kUnavailable) << "it would have to wait";

  KvSequence kv(decode_.arena.get());
  JobLog log;
  intake.Begin(task, &kv, log.Events());
  ASSERT_TRUE(ems::testing::Eventually([&] { return send(task.id, seconds(10)).ok(); }));
  peer.events.on_done(PrefillOutcome{});
  EXPECT_EQ(log.WaitForEnd().arrived, 1);
  EXPECT_EQ(decode_.KvBytes(kv), decode_.KvBytes(computed));
}

}  // namespace
}  // namespace ems::pdc
