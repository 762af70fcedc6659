// What must hold: a prefill process is used as if it were here, KV included; whatever becomes of
// it, each task's events come exactly once, and a new start of it is found.
#include "pdc/rpc/remote_prefill_peer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "pdc/kv/kv_handoff.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/support/eventually.h"
#include "tests/support/prefill_log.h"
#include "tests/support/scripted_prefill.h"

namespace ems::pdc {
namespace {

using ems::testing::Eventually;
using ems::testing::PrefillLog;
using ems::testing::ScriptedInstance;
using ems::testing::ScriptedPrefillHost;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;

// Quick to ask, slow to time out: only what a test is about happens.
constexpr PeerWatchOptions kPatient{.pulse_every = milliseconds(10),
                                    .call_timeout = seconds(5),
                                    .dead_after = seconds(30),
                                    .stall_limit = seconds(30)};

StatusCode CodeOf(const Result<PrefillOutcome>& done) { return done.status().code(); }

class RemotePrefillPeerTest : public ::testing::Test {
 protected:
  void Serve() {
    PrefillServiceOptions options;
    options.listen = address_;
    options.instance = instance_;
    auto started = ServePrefill(options, &host_);
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
    address_ = service_->address();
  }
  void Connect(const PeerWatchOptions& watch = kPatient, const std::string& fingerprint = "f1") {
    peer_ = std::make_unique<RemotePrefillPeer>(RemotePrefillPeerOptions{
        .name = "p0",
        .address = address_,
        .expected = {.fingerprint = fingerprint, .block_tokens = 16, .storage = KvStorage::kBf16},
        .ring = {.entries = 4, .entry_bytes = 4 * kKiB, .checksums = true},
        .watch = watch});
  }
  void ServeAndConnect(const PeerWatchOptions& watch = kPatient) {
    Serve();
    Connect(watch);
    ASSERT_TRUE(IsUp()) << peer_->health().status;
  }
  bool IsUp() {
    return Eventually([&] { return peer_->health().status.ok(); }, seconds(10));
  }
  static PrefillTask Task(uint64_t id) {
    PrefillTask task;
    task.id = id;
    task.prompt = {1, 2, 3};
    return task;
  }
  // Started, and taken by the host.
  void StartTask(uint64_t id, PrefillLog* log) {
    ASSERT_EQ(peer_->Start(Task(id), log->events()), OkStatus());
    ASSERT_TRUE(Eventually([&] { return host_.Has(id); }));
  }
  void FinishTask(uint64_t id, PrefillLog* log) {
    host_.Done(id, {.first = 9, .prompt_tokens = 3});
    ASSERT_TRUE(Eventually([&] { return log->done().size() == 1; }));
  }

  InstanceInfo instance_ = ScriptedInstance("remote");
  std::string address_ = "127.0.0.1:0";
  ScriptedPrefillHost host_;
  std::unique_ptr<InstanceService> service_;
  std::unique_ptr<RemotePrefillPeer> peer_;
};

TEST_F(RemotePrefillPeerTest, ATaskGoesOverWhole) {
  ServeAndConnect();
  PrefillTask task = Task(77);
  task.sampler = {.temperature = 0.5F, .top_p = 0.25F, .seed = ~uint64_t{0}};
  task.cache_salt = std::string("\xff\0x", 3);
  task.draft = false;
  task.deadline = Deadline::After(seconds(40));
  PrefillLog log;
  ASSERT_EQ(peer_->Start(task, log.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return host_.Has(77); }));
  const PrefillTask got = host_.Get(77);
  EXPECT_EQ(got.prompt, task.prompt);
  EXPECT_EQ(got.sampler.temperature, 0.5F);
  EXPECT_EQ(got.sampler.top_p, 0.25F);
  EXPECT_EQ(got.sampler.seed, ~uint64_t{0});
  EXPECT_EQ(got.cache_salt, task.cache_salt);
  EXPECT_FALSE(got.draft);
  EXPECT_GT(got.deadline.Remaining(), seconds(20));
  EXPECT_LE(got.deadline.Remaining(), seconds(40));

  host_.Done(77, {.first = 263,
                  .draft = 0,
                  .prompt_tokens = 3,
                  .cached_tokens = 2,
                  .waiting = milliseconds(1),
                  .loading = milliseconds(2),
                  .computing = milliseconds(3)});
  ASSERT_TRUE(Eventually([&] { return !log.done().empty(); }));
  const PrefillOutcome outcome = *log.done()[0];
  EXPECT_EQ(outcome.first, 263U);
  EXPECT_EQ(outcome.draft, std::optional<TokenId>(0));
  EXPECT_EQ(outcome.prompt_tokens, 3U);
  EXPECT_EQ(outcome.cached_tokens, 2U);
  EXPECT_EQ(outcome.waiting, milliseconds(1));
  EXPECT_EQ(outcome.loading, milliseconds(2));
  EXPECT_EQ(outcome.computing, milliseconds(3));
  EXPECT_TRUE(log.sent().empty());
  host_.Sent(77, OkStatus());
  ASSERT_TRUE(Eventually([&] { return !log.sent().empty(); }));
  EXPECT_EQ(log.sent()[0], OkStatus());
  peer_.reset();
  EXPECT_EQ(log.done().size(), 1U);
  EXPECT_EQ(log.sent().size(), 1U);
}

TEST_F(RemotePrefillPeerTest, KvArrivesOverTheRing) {
  ServeAndConnect();
  EngineRig prefill(TinyConfig()), decode(prefill.model, {.block_tokens = 16});
  KvSequence computed(prefill.arena.get()), received(decode.arena.get());
  PrefillTask task = Task(5);
  task.prompt = RandomTokens(75, 1);
  prefill.Compute(&computed, task.prompt, LogitsOf::kNone);

  const auto ring = peer_->ring();
  auto arrival = KvArrival::Post(ring.get(), task.id, &received, 75);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  PrefillLog log;
  ASSERT_EQ(peer_->Start(task, log.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return host_.Has(5); }));
  Status sent;
  {
    const Thread sender("send", [&] {
      sent = SendKv(host_.RingOf(5).get(), 5, computed, Deadline::After(seconds(10)));
    });
    EXPECT_TRUE(*(*arrival)->Poll(seconds(10)));
  }
  EXPECT_EQ(sent, OkStatus());
  EXPECT_EQ(decode.KvBytes(received), prefill.KvBytes(computed));
  arrival->reset();
}

TEST_F(RemotePrefillPeerTest, WhatCanBeSeenHereIsRefusedAtOnce) {
  ServeAndConnect();
  PrefillLog log;
  const auto refusal = [&](auto change) {
    PrefillTask task = Task(1);
    change(&task);
    return peer_->Start(std::move(task), log.events()).code();
  };
  EXPECT_EQ(refusal([](PrefillTask* task) { task->prompt.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](PrefillTask* task) { task->prompt.push_back(264); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](PrefillTask* task) { task->prompt.resize(1001); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](PrefillTask* task) { task->sampler.top_p = 0; }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](PrefillTask* task) { task->id = uint64_t{1} << 48; }),
            StatusCode::kInvalidArgument);
  StartTask(1, &log);
  EXPECT_EQ(refusal([](PrefillTask*) {}), StatusCode::kAlreadyExists);
  host_.Fail(1, Error(StatusCode::kResourceExhausted, "no blocks"));
  ASSERT_TRUE(Eventually([&] { return !log.done().empty(); }));
  EXPECT_EQ(log.done().size(), 1U);
  EXPECT_EQ(CodeOf(log.done()[0]), StatusCode::kResourceExhausted);
  PrefillLog again;
  EXPECT_EQ(peer_->Start(Task(1), again.events()), OkStatus()) << "the id is free again";
}

TEST_F(RemotePrefillPeerTest, ARefusalOfTheHostComesAsAnEvent) {
  ServeAndConnect();
  host_.Refuse(Error(StatusCode::kResourceExhausted, "the queue is full"));
  PrefillLog log;
  ASSERT_EQ(peer_->Start(Task(1), log.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return !log.done().empty(); }));
  EXPECT_EQ(CodeOf(log.done()[0]), StatusCode::kResourceExhausted);
  peer_.reset();
  EXPECT_EQ(log.done().size(), 1U);
  EXPECT_TRUE(log.sent().empty());
}

TEST_F(RemotePrefillPeerTest, CancelEndsATaskThereAndHere) {
  ServeAndConnect();
  PrefillLog waiting, computed, other;
  StartTask(1, &waiting);
  StartTask(2, &computed);
  StartTask(3, &other);
  FinishTask(2, &computed);
  peer_->Cancel(1);
  peer_->Cancel(2);
  peer_->Cancel(99);
  ASSERT_TRUE(Eventually([&] { return !waiting.done().empty() && !computed.sent().empty(); }));
  EXPECT_EQ(CodeOf(waiting.done()[0]), StatusCode::kCancelled);
  EXPECT_EQ(computed.sent()[0].code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return host_.WasCancelled(1) && host_.WasCancelled(2); }));
  EXPECT_FALSE(host_.WasCancelled(3));
  FinishTask(3, &other);
  EXPECT_TRUE(other.done()[0].ok());
  peer_.reset();
  EXPECT_EQ(waiting.done().size(), 1U);
  EXPECT_TRUE(waiting.sent().empty());
  EXPECT_EQ(computed.done().size(), 1U);
  EXPECT_EQ(computed.sent().size(), 1U);
}

TEST_F(RemotePrefillPeerTest, ATaskThatNobodyAnswersEndsWithItsDeadline) {
  ServeAndConnect();
  PrefillTask task = Task(1);
  task.deadline = Deadline::After(milliseconds(1));
  PrefillLog log;
  ASSERT_EQ(peer_->Start(task, log.events()), OkStatus());
  ASSERT_TRUE(Eventually([&] { return !log.done().empty(); }));
  EXPECT_EQ(CodeOf(log.done()[0]), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return host_.WasCancelled(1); }));
}

TEST_F(RemotePrefillPeerTest, NonsenseEndsTheTask) {
  ServeAndConnect();
  PrefillLog token, tokens;
  StartTask(1, &token);
  StartTask(2, &tokens);
  host_.Done(1, {.first = 264, .prompt_tokens = 3});
  host_.Done(2, {.first = 1, .prompt_tokens = 4});
  ASSERT_TRUE(Eventually([&] { return !token.done().empty() && !tokens.done().empty(); }));
  EXPECT_EQ(CodeOf(token.done()[0]), StatusCode::kUnavailable);
  EXPECT_EQ(CodeOf(tokens.done()[0]), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return host_.WasCancelled(1) && host_.WasCancelled(2); }));
}

TEST_F(RemotePrefillPeerTest, AProcessThatIsGoneEndsItsTasksAndItsNextStartIsFound) {
  ServeAndConnect();
  const auto ring = peer_->ring();
  const uint64_t incarnation = peer_->instance()->incarnation;
  PrefillLog waiting, computed;
  StartTask(1, &waiting);
  StartTask(2, &computed);
  FinishTask(2, &computed);
  service_.reset();
  ASSERT_TRUE(Eventually([&] { return !waiting.done().empty() && !computed.sent().empty(); }));
  EXPECT_EQ(CodeOf(waiting.done()[0]), StatusCode::kUnavailable);
  EXPECT_EQ(computed.sent()[0].code(), StatusCode::kUnavailable);
  ASSERT_TRUE(Eventually([&] { return peer_->ring() == nullptr; }));
  EXPECT_EQ(peer_->health().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->Start(Task(3), waiting.events()).code(), StatusCode::kUnavailable);
  EXPECT_EQ(host_.rings(), 0U);
  EXPECT_TRUE(ring->peer_is_gone());

  Serve();
  ASSERT_TRUE(IsUp()) << peer_->health().status;
  EXPECT_NE(peer_->instance()->incarnation, incarnation);
  ASSERT_NE(peer_->ring(), nullptr);
  EXPECT_NE(peer_->ring(), ring);
  PrefillLog again;
  StartTask(1, &again);
  FinishTask(1, &again);
  EXPECT_TRUE(again.done()[0].ok());
  EXPECT_EQ(waiting.done().size(), 1U);
  EXPECT_EQ(computed.done().size(), 1U);
}

TEST_F(RemotePrefillPeerTest, WhoseTaskBrokeIsNotAskedAgainBeforeItAnswers) {
  ServeAndConnect({.pulse_every = std::chrono::hours(1), .call_timeout = seconds(5)});
  std::atomic<int> told{0};
  ASSERT_EQ(peer_->Start(Task(1), {.on_done =
                                       [&](const Result<PrefillOutcome>&) {
                                         // A caller that hears of it, and tries again at once, goes
                                         // elsewhere.
                                         EXPECT_FALSE(peer_->health().status.ok());
                                         told = 1;
                                       },
                                   .on_sent = [](const Status&) {}}),
            OkStatus());
  ASSERT_TRUE(Eventually([&] { return host_.Has(1); }));
  service_.reset();
  ASSERT_TRUE(Eventually([&] { return told == 1; }));
  Serve();
  EXPECT_TRUE(IsUp()) << "it is looked for at once, not with the next pulse";
}

TEST_F(RemotePrefillPeerTest, AProcessThatStandsStillIsNotUsedUntilItMoves) {
  ServeAndConnect({.pulse_every = milliseconds(5),
                   .call_timeout = seconds(5),
                   .dead_after = seconds(30),
                   .stall_limit = milliseconds(100)});
  const auto ring = peer_->ring();
  PrefillLog log;
  StartTask(1, &log);
  host_.SetPulse({.status = {}, .ticks = 7, .busy = true, .queued_cost = 12.5});
  ASSERT_TRUE(Eventually([&] { return !log.done().empty(); }, seconds(10)));
  EXPECT_EQ(CodeOf(log.done()[0]), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->health().queued_cost, 12.5);
  EXPECT_EQ(peer_->Start(Task(2), log.events()).code(), StatusCode::kUnavailable);
  host_.SetPulse({.status = {}, .ticks = 8, .busy = false});
  ASSERT_TRUE(IsUp()) << peer_->health().status;
  EXPECT_EQ(peer_->ring(), ring);  // the link was never broken
}

TEST_F(RemotePrefillPeerTest, WhatTheHostSaysOfItselfIsItsHealth) {
  ServeAndConnect();
  host_.SetPulse({.status = Error(StatusCode::kUnavailable, "out of sorts"), .queued_cost = -1});
  ASSERT_TRUE(Eventually([&] { return !peer_->health().status.ok(); }));
  EXPECT_EQ(Message(peer_->health().status), "prefill p0: out of sorts");
  EXPECT_EQ(peer_->health().queued_cost, 0);
}

TEST_F(RemotePrefillPeerTest, ALinkThatTheHostFindsDeadIsMadeAnew) {
  ServeAndConnect();
  const auto ring = peer_->ring();
  host_.SetLinkStatus(Error(StatusCode::kUnavailable, "no answer to probes"));
  ASSERT_TRUE(Eventually([&] { return peer_->ring() == nullptr; }));
  host_.SetLinkStatus(OkStatus());
  ASSERT_TRUE(IsUp()) << peer_->health().status;
  EXPECT_NE(peer_->ring(), ring);
}

TEST_F(RemotePrefillPeerTest, AnotherModelGetsNothing) {
  Serve();
  Connect(kPatient, "f2");
  ASSERT_TRUE(
      Eventually([&] { return peer_->health().status.code() == StatusCode::kFailedPrecondition; }));
  EXPECT_NE(Message(peer_->health().status).find("fingerprint f1, expected is f2"),
            std::string::npos)
      << peer_->health().status;
  PrefillLog log;
  EXPECT_EQ(peer_->Start(Task(1), log.events()).code(), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->ring(), nullptr);
  EXPECT_EQ(host_.rings(), 0U);
}

TEST_F(RemotePrefillPeerTest, ItsEndIsTheEndOfItsTasks) {
  ServeAndConnect();
  PrefillLog waiting, computed;
  StartTask(1, &waiting);
  StartTask(2, &computed);
  FinishTask(2, &computed);
  peer_.reset();
  ASSERT_EQ(waiting.done().size(), 1U);
  EXPECT_EQ(CodeOf(waiting.done()[0]), StatusCode::kUnavailable);
  ASSERT_EQ(computed.sent().size(), 1U);
  EXPECT_EQ(computed.sent()[0].code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return host_.WasCancelled(1) && host_.WasCancelled(2); }));
}

TEST_F(RemotePrefillPeerTest, ItMayGoWhileItConnects) {
  address_ = "127.0.0.1:1";  // nobody
  Connect();
  ASSERT_TRUE(Eventually(
      [&] { return Message(peer_->health().status).find("has not been") == std::string::npos; }));
  EXPECT_EQ(peer_->health().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->ring(), nullptr);
  EXPECT_FALSE(peer_->instance().has_value());
}

}  // namespace
}  // namespace ems::pdc
