// What must hold: a decode process is used as if it were here; whatever becomes of it, each task
// ends once, and a new start of it is found.
#include "pdc/rpc/remote_decode_peer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "pdc/rpc/decode_service.h"
#include "tests/support/eventually.h"
#include "tests/support/scripted_decode.h"
#include "tests/support/scripted_prefill.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::LoggedSink;
using testing::ScriptedDecode;
using testing::ScriptedInstance;

// Quick to ask, slow to time out: only what a test is about happens.
constexpr PeerWatchOptions kPatient{.pulse_every = milliseconds(10),
                                    .call_timeout = seconds(5),
                                    .dead_after = seconds(30),
                                    .stall_limit = seconds(30)};

class RemoteDecodePeerTest : public ::testing::Test {
 protected:
  void Serve() {
    auto started = ServeDecode({.listen = address_, .instance = ScriptedInstance("")}, &decode_);
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
    address_ = service_->address();
  }
  void Connect(const PeerWatchOptions& watch = kPatient,
               std::optional<InstanceInfo> expected = {}) {
    peer_ = std::make_unique<RemoteDecodePeer>(RemoteDecodePeerOptions{
        .name = "d0", .address = address_, .expected = std::move(expected), .watch = watch});
  }
  void ServeAndConnect(const PeerWatchOptions& watch = kPatient) {
    Serve();
    Connect(watch);
    ASSERT_TRUE(IsUp()) << peer_->health().status;
  }
  bool IsUp() {
    return Eventually([&] { return peer_->health().status.ok(); }, seconds(10));
  }
  static DecodeTask Task(uint64_t id) {
    DecodeTask task;
    task.id = id;
    task.prompt = {1, 2, 3};
    return task;
  }
  // Submitted, and taken by the instance: its sink there.
  std::shared_ptr<DecodeSink> Submit(uint64_t id, const std::shared_ptr<LoggedSink>& sink) {
    const size_t before = decode_.tasks();
    EXPECT_EQ(peer_->Submit(Task(id), sink), OkStatus());
    EXPECT_TRUE(Eventually([&] { return decode_.tasks() > before; }));
    return decode_.SinkOf(decode_.Last()->id);
  }

  std::string address_ = "127.0.0.1:0";
  ScriptedDecode decode_;
  std::unique_ptr<InstanceService> service_;
  std::unique_ptr<RemoteDecodePeer> peer_;
  const std::shared_ptr<LoggedSink> sink_ = std::make_shared<LoggedSink>();
};

TEST_F(RemoteDecodePeerTest, ATaskAndItsAnswerGoOverWhole) {
  ServeAndConnect();
  DecodeTask task = Task(7);
  task.tokens_max = 5;
  task.stop_at_end = false;
  task.sampler = {.temperature = 2, .top_p = 0.5F, .seed = 11};
  task.cache_salt = std::string("a\0\xfe", 3);
  task.deadline = Deadline::After(seconds(40));
  ASSERT_EQ(peer_->Submit(task, sink_), OkStatus());
  ASSERT_TRUE(Eventually([&] { return decode_.Last().has_value(); }));
  const DecodeTask got = *decode_.Last();
  EXPECT_GE(got.id, kFirstServedTask);
  EXPECT_EQ(got.prompt, task.prompt);
  EXPECT_EQ(got.tokens_max, 5U);
  EXPECT_FALSE(got.stop_at_end);
  EXPECT_EQ(got.sampler.temperature, 2.0F);
  EXPECT_EQ(got.sampler.top_p, 0.5F);
  EXPECT_EQ(got.sampler.seed, 11U);
  EXPECT_EQ(got.cache_salt, task.cache_salt);
  EXPECT_GT(got.deadline.Remaining(), seconds(20));
  EXPECT_LE(got.deadline.Remaining(), seconds(40));

  const auto there = decode_.Take(got.id);
  there->OnPrompt(3, 2);
  there->OnTokens(std::vector<TokenId>{5});
  ASSERT_TRUE(Eventually([&] { return sink_->log().tokens.size() == 1; }));
  there->OnTokens(std::vector<TokenId>{0, 263});
  there->OnTokens(std::vector<TokenId>{6});
  there->OnEnd(FinishReason::kLength);
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  peer_.reset();
  const auto log = sink_->log();
  EXPECT_EQ(log.prompts, (std::vector<std::pair<uint32_t, uint32_t>>{{3, 2}}));
  EXPECT_EQ(log.tokens, (std::vector<TokenId>{5, 0, 263, 6}));
  ASSERT_EQ(log.ends.size(), 1U);
  EXPECT_EQ(*log.ends[0], FinishReason::kLength);
}

TEST_F(RemoteDecodePeerTest, EndsAreAsTheInstanceSays) {
  ServeAndConnect();
  const auto stopped = std::make_shared<LoggedSink>(), failed = std::make_shared<LoggedSink>();
  Submit(1, stopped)->OnEnd(FinishReason::kStop);
  Submit(2, failed)->OnEnd(Error(StatusCode::kResourceExhausted, "no KV blocks in time"));
  ASSERT_TRUE(Eventually([&] { return stopped->ended() && failed->ended(); }));
  EXPECT_EQ(*stopped->log().ends[0], FinishReason::kStop);
  EXPECT_EQ(failed->log().ends[0].status(),
            Error(StatusCode::kResourceExhausted, "no KV blocks in time"));
}

TEST_F(RemoteDecodePeerTest, WhatCanBeSeenHereIsRefusedAtOnce) {
  ServeAndConnect();
  const auto refusal = [&](auto change) {
    DecodeTask task = Task(1);
    change(&task);
    return peer_->Submit(std::move(task), sink_).code();
  };
  EXPECT_EQ(refusal([](DecodeTask* task) { task->prompt.clear(); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](DecodeTask* task) { task->prompt[1] = 264; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](DecodeTask* task) { task->tokens_max = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](DecodeTask* task) { task->sampler.temperature = -1; }),
            StatusCode::kInvalidArgument);
  Submit(1, sink_);
  EXPECT_EQ(refusal([](DecodeTask*) {}), StatusCode::kAlreadyExists);
  EXPECT_FALSE(sink_->ended());
}

TEST_F(RemoteDecodePeerTest, ARefusalOfTheInstanceIsAnEnd) {
  ServeAndConnect();
  decode_.Refuse(Error(StatusCode::kResourceExhausted, "the queue is full"));
  ASSERT_EQ(peer_->Submit(Task(1), sink_), OkStatus());
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  EXPECT_EQ(sink_->log().ends[0].status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(peer_->Submit(Task(1), sink_), OkStatus());  // the id is free again
}

TEST_F(RemoteDecodePeerTest, CancelEndsATaskThereAndHere) {
  ServeAndConnect();
  const auto other = std::make_shared<LoggedSink>();
  Submit(2, other);
  Submit(1, sink_);
  peer_->Cancel(1);
  peer_->Cancel(99);
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  EXPECT_EQ(sink_->log().ends[0].status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return decode_.tasks() == 1; }));
  EXPECT_FALSE(other->ended());
  peer_.reset();
  EXPECT_EQ(sink_->log().ends.size(), 1U);
  EXPECT_EQ(other->log().ends.at(0).status().code(), StatusCode::kUnavailable);
}

TEST_F(RemoteDecodePeerTest, ATaskThatNobodyAnswersEndsWithItsDeadline) {
  ServeAndConnect();
  DecodeTask task = Task(1);
  task.deadline = Deadline::After(milliseconds(1));
  ASSERT_EQ(peer_->Submit(task, sink_), OkStatus());
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  EXPECT_EQ(sink_->log().ends[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return decode_.tasks() == 0; }));
}

TEST_F(RemoteDecodePeerTest, NonsenseEndsTheTask) {
  ServeAndConnect();
  const auto nonsense = [&](auto say) {
    const auto sink = std::make_shared<LoggedSink>();
    say(Submit(1, sink).get());
    EXPECT_TRUE(Eventually([&] { return sink->ended(); }));
    EXPECT_TRUE(Eventually([&] { return decode_.tasks() == 0; }));
    EXPECT_TRUE(sink->log().tokens.empty());
    return sink->log().ends.at(0).status().code();
  };
  EXPECT_EQ(nonsense([](DecodeSink* sink) { sink->OnTokens(std::vector<TokenId>{264}); }),
            StatusCode::kUnavailable);
  EXPECT_EQ(nonsense([](DecodeSink* sink) { sink->OnTokens(std::vector<TokenId>(129)); }),
            StatusCode::kUnavailable);
  EXPECT_EQ(nonsense([](DecodeSink* sink) { sink->OnPrompt(4, 0); }), StatusCode::kUnavailable);
  EXPECT_EQ(nonsense([](DecodeSink* sink) { sink->OnPrompt(3, 4); }), StatusCode::kUnavailable);
}

TEST_F(RemoteDecodePeerTest, AProcessThatIsGoneEndsItsTasksAndItsNextStartIsFound) {
  ServeAndConnect();
  const uint64_t incarnation = peer_->instance()->incarnation;
  const auto there = Submit(1, sink_);
  there->OnPrompt(3, 0);
  there->OnTokens(std::vector<TokenId>{5});
  ASSERT_TRUE(Eventually([&] { return sink_->log().tokens.size() == 1; }));
  service_.reset();
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  EXPECT_EQ(sink_->log().ends[0].status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(decode_.tasks(), 0U);
  there->OnTokens(std::vector<TokenId>{6});  // to nobody
  ASSERT_TRUE(Eventually([&] { return !peer_->health().status.ok(); }));
  EXPECT_EQ(peer_->Submit(Task(2), sink_).code(), StatusCode::kUnavailable);

  Serve();
  ASSERT_TRUE(IsUp()) << peer_->health().status;
  EXPECT_NE(peer_->instance()->incarnation, incarnation);
  const auto again = std::make_shared<LoggedSink>();
  Submit(1, again)->OnEnd(FinishReason::kStop);
  ASSERT_TRUE(Eventually([&] { return again->ended(); }));
  EXPECT_TRUE(again->log().ends[0].ok());
  EXPECT_EQ(sink_->log().ends.size(), 1U);
  EXPECT_EQ(sink_->log().tokens.size(), 1U);
}

TEST_F(RemoteDecodePeerTest, WhoseTaskBrokeIsLookedForAtOnce) {
  ServeAndConnect({.pulse_every = std::chrono::hours(1), .call_timeout = seconds(5)});
  Submit(1, sink_);
  service_.reset();
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }));
  EXPECT_FALSE(peer_->health().status.ok()) << "before its task's end was told";
  Serve();
  EXPECT_TRUE(IsUp()) << "not with the next pulse";
}

TEST_F(RemoteDecodePeerTest, AProcessThatStandsStillIsNotUsedUntilItMoves) {
  Serve();
  Connect({.pulse_every = milliseconds(5),
           .call_timeout = seconds(5),
           .dead_after = seconds(30),
           .stall_limit = milliseconds(100)});
  ASSERT_TRUE(IsUp());
  Submit(1, sink_);
  decode_.SetHealth({.status = OkStatus(), .busy = true});
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }, seconds(10)));
  EXPECT_EQ(sink_->log().ends[0].status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(peer_->Submit(Task(2), sink_).code(), StatusCode::kUnavailable);
  decode_.SetHealth({.status = OkStatus(), .busy = false});
  EXPECT_TRUE(IsUp()) << peer_->health().status;
}

TEST_F(RemoteDecodePeerTest, HealthIsAsLastHeard) {
  ServeAndConnect();
  decode_.SetHealth({.status = OkStatus(),
                     .running = 3,
                     .waiting = 4,
                     .kv_tokens = 500,
                     .kv_tokens_max = 6000,
                     .admits = Error(StatusCode::kUnavailable, "no prefill")});
  ASSERT_TRUE(Eventually([&] { return peer_->health().running == 3; }));
  const DecodeHealth health = peer_->health();
  EXPECT_EQ(health.admits, Error(StatusCode::kUnavailable, "no prefill"));
  EXPECT_EQ(health.status, OkStatus());
  EXPECT_EQ(health.waiting, 4U);
  EXPECT_EQ(health.kv_tokens, 500U);
  EXPECT_EQ(health.kv_tokens_max, 6000U);
  decode_.SetHealth({.status = Error(StatusCode::kUnavailable, "no prefill")});
  ASSERT_TRUE(Eventually([&] { return !peer_->health().status.ok(); }));
  EXPECT_EQ(Message(peer_->health().status), "decode d0: no prefill");
}

TEST_F(RemoteDecodePeerTest, AnotherModelIsNotUsed) {
  Serve();
  Connect(kPatient, InstanceInfo{.fingerprint = "f1", .block_tokens = 32});
  ASSERT_TRUE(
      Eventually([&] { return peer_->health().status.code() == StatusCode::kFailedPrecondition; }));
  EXPECT_EQ(Message(peer_->health().status),
            "decode d0: has KV blocks of 16 tokens, expected are 32");
  EXPECT_EQ(peer_->Submit(Task(1), sink_).code(), StatusCode::kUnavailable);
}

TEST_F(RemoteDecodePeerTest, WorksOverAUnixSocket) {
  address_ = fmt::format("unix:/tmp/ems-decode-{}", ::getpid());
  ServeAndConnect();
  Submit(1, sink_)->OnEnd(FinishReason::kStop);
  EXPECT_TRUE(Eventually([&] { return sink_->ended(); }));
}

TEST_F(RemoteDecodePeerTest, ALongAnswerArrivesInOrder) {
  ServeAndConnect();
  DecodeTask task = Task(1);
  task.tokens_max = 100'000;
  ASSERT_EQ(peer_->Submit(task, sink_), OkStatus());
  ASSERT_TRUE(Eventually([&] { return decode_.Last().has_value(); }));
  const auto there = decode_.Take(decode_.Last()->id);
  std::vector<TokenId> all;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const std::vector<TokenId> some{i % 264, (i * 7) % 264};
    there->OnTokens(some);
    all.insert(all.end(), some.begin(), some.end());
  }
  there->OnEnd(FinishReason::kLength);
  ASSERT_TRUE(Eventually([&] { return sink_->ended(); }, seconds(20)));
  EXPECT_EQ(sink_->log().tokens, all);
}

}  // namespace
}  // namespace ems::pdc
