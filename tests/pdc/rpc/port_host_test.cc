// What must hold: each ring has a port of its own, whose tasks' KV goes there; the end of one
// leaves the others alone, and what was under way for it ends.
#include "pdc/rpc/port_host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "fabric/emulated/ring_pair.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"
#include "tests/support/prefill_log.h"

namespace ems::pdc {
namespace {

using ems::testing::Eventually;
using ems::testing::PrefillLog;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

constexpr KvOptions kKv{.block_tokens = 16};

class PortHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.resize(KvArena::BlockBytes(decode_.model->config(), kKv) * 64);
    auto worker = PrefillWorker::Create(decode_.model, memory_, nullptr, {.kv = kKv});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    host_.emplace(worker_.get(), PrefillPortOptions{}, 2);
  }
  struct Attached {
    std::shared_ptr<PrefillLink> link;
    std::unique_ptr<fabric::RingReceiver> receiver;
    Status refused{};
  };
  Attached Attach() {
    auto ring = fabric::MakeRingPair({.entries = 2, .entry_bytes = 4 * kKiB});
    EXPECT_TRUE(ring.ok()) << ring.status();
    auto link = host_->Attach(std::move(ring->sender));
    return {link.ok() ? *link : nullptr, std::move(ring->receiver), link.status()};
  }
  static PrefillTask TaskOf(uint64_t id, size_t tokens) {
    return {.id = id, .prompt = RandomTokens(tokens, id)};
  }

  EngineRig decode_{TinyConfig()};
  std::vector<std::byte> memory_;
  std::unique_ptr<PrefillWorker> worker_;
  std::optional<PortHost> host_;
};

TEST_F(PortHostTest, KvOfATaskGoesOverTheRingOfItsLink) {
  const Attached first = Attach(), second = Attach();
  ASSERT_TRUE(first.link != nullptr && second.link != nullptr);
  // The same id at both: ids are a link's own.
  KvSequence kv(decode_.arena.get()), other(decode_.arena.get());
  const auto here = KvArrival::Post(first.receiver.get(), 9, &kv, 70);
  const auto there = KvArrival::Post(second.receiver.get(), 9, &other, 40);
  ASSERT_TRUE(here.ok() && there.ok());
  PrefillLog log, other_log;
  ASSERT_EQ(first.link->Start(TaskOf(9, 70), log.events()), OkStatus());
  ASSERT_EQ(second.link->Start(TaskOf(9, 40), other_log.events()), OkStatus());
  EXPECT_TRUE(*(*here)->Poll(seconds(10)));
  EXPECT_TRUE(*(*there)->Poll(seconds(10)));
  ASSERT_TRUE(Eventually([&] { return !log.sent().empty() && !other_log.sent().empty(); }));
  EXPECT_EQ(log.sent()[0], OkStatus());
  EXPECT_EQ(host_->stats().handed_over, 2U);
}

TEST_F(PortHostTest, ThereIsABoundToLinksAndADetachedOneMakesRoom) {
  Attached first = Attach(), second = Attach();
  ASSERT_TRUE(first.link != nullptr && second.link != nullptr);
  EXPECT_EQ(Attach().refused.code(), StatusCode::kResourceExhausted);
  first.link.reset();
  const Attached third = Attach();
  EXPECT_NE(third.link, nullptr) << third.refused;
}

TEST_F(PortHostTest, ALinkThatIsLetGoHangsUp) {
  Attached attached = Attach();
  attached.link.reset();
  EXPECT_TRUE(Eventually([&] { return attached.receiver->peer_is_gone(); }));
}

TEST_F(PortHostTest, TheEndOfALinkEndsWhatIsUnderWayForItAlone) {
  Attached first = Attach(), second = Attach();
  PrefillLog log, other;
  // Nobody awaits their KV: both stand at the hand-over.
  ASSERT_EQ(first.link->Start(TaskOf(1, 40), log.events()), OkStatus());
  ASSERT_EQ(second.link->Start(TaskOf(1, 40), other.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return log.done().size() == 1 && other.done().size() == 1; }));
  EXPECT_EQ(host_->Pulse().tasks, 2U);
  first.link.reset();
  ASSERT_TRUE(Eventually([&] { return log.sent().size() == 1; }));
  EXPECT_FALSE(log.sent()[0].ok());
  EXPECT_TRUE(Eventually([&] { return host_->Pulse().tasks == 1; }));
  EXPECT_EQ(second.link->link(), OkStatus());
  EXPECT_TRUE(other.sent().empty());
  second.link->Cancel(1);
  ASSERT_TRUE(Eventually([&] { return other.sent().size() == 1; }));
  EXPECT_TRUE(Eventually([&] { return host_->Pulse().tasks == 0; }));
  EXPECT_EQ(host_->Pulse().kv_tokens_free, 64U * 16) << "all KV is given back";
}

TEST_F(PortHostTest, ItsEndIsTheEndOfItsTasks) {
  Attached attached = Attach();
  PrefillLog log;
  ASSERT_EQ(attached.link->Start(TaskOf(1, 40), log.events()), OkStatus());
  attached.link.reset();
  host_.reset();
  // Whichever event is to come has come.
  EXPECT_TRUE(log.sent().size() == 1 || (log.done().size() == 1 && !log.done()[0].ok()));
  EXPECT_TRUE(attached.receiver->peer_is_gone());
}

TEST_F(PortHostTest, ThePulseIsTheWorkers) {
  const Attached attached = Attach();
  const PrefillPulse before = host_->Pulse();
  EXPECT_EQ(before.status, OkStatus());
  EXPECT_FALSE(before.busy);
  EXPECT_EQ(before.kv_tokens_free, 64U * 16);
  PrefillLog log;
  ASSERT_EQ(attached.link->Start(TaskOf(1, 40), log.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return log.done().size() == 1; }));
  EXPECT_GT(host_->Pulse().ticks, before.ticks);
  EXPECT_EQ(host_->Pulse().kv_tokens_free, 61U * 16) << "40 tokens, until they are handed over";
}

TEST_F(PortHostTest, FiguresOfALinkStayWhenItHasGone) {
  for (uint64_t round = 1; round <= 2; ++round) {
    Attached attached = Attach();
    ASSERT_NE(attached.link, nullptr);
    KvSequence kv(decode_.arena.get());
    auto arrival = KvArrival::Post(attached.receiver.get(), round, &kv, 20);
    ASSERT_TRUE(arrival.ok()) << arrival.status();
    PrefillLog log;
    ASSERT_EQ(attached.link->Start(TaskOf(round, 20), log.events()), OkStatus());
    EXPECT_TRUE(*(*arrival)->Poll(seconds(20)));
    ASSERT_TRUE(Eventually([&] { return !log.sent().empty(); }));
    attached.link.reset();
    EXPECT_EQ(host_->stats().handed_over, round);
  }
}

// A link's end waits for its events; calls run on threads that must not.
TEST_F(PortHostTest, ACallThatIsTheLastToUseALinkDoesNotWaitForItsEnd) {
  Attached attached = Attach();
  ASSERT_NE(attached.link, nullptr);
  PrefillLink* const link = attached.link.get();
  StopFlag busy, go_on;
  ASSERT_EQ(link->Start(TaskOf(1, 20), {.on_done =
                                            [&](const Result<PrefillOutcome>&) {
                                              busy.Set();
                                              EXPECT_TRUE(go_on.WaitFor(seconds(10)));
                                            },
                                        .on_sent = [](const Status&) {}}),
            OkStatus());
  ASSERT_TRUE(busy.WaitFor(seconds(20)));
  std::atomic<bool> ended = false;
  ASSERT_EQ(link->Start(TaskOf(2, 20), {.on_done =
                                            [&](const Result<PrefillOutcome>&) {
                                              attached.link.reset();
                                              ended = true;
                                            },
                                        .on_sent = [](const Status&) {}}),
            OkStatus());
  // The one thread that computes is in the first one's event: this one ends in the call that
  // cancels it, or on the thread that loads.
  {
    const std::shared_ptr<PrefillLink> call = attached.link;
    call->Cancel(2);
    EXPECT_TRUE(Eventually([&] { return ended.load(); }));
  }
  go_on.Set();
  host_.reset();
}

}  // namespace
}  // namespace ems::pdc
