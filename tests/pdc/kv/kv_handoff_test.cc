// What must hold: a decode worker goes on with handed-over KV as if it had computed it; tokens are
// valid only when all of them arrived; who dies or comes late is an error in time.
#include "pdc/kv/kv_handoff.h"

#include <gtest/gtest.h>

#include <optional>

#include "common/thread_pool.h"
#include "fabric/emulated/ring_pair.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

Deadline Soon() { return Deadline::After(seconds(10)); }

class KvHandoffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = fabric::MakeRingPair({.entries = 4, .entry_bytes = 4 * kKiB, .checksums = true});
    ASSERT_TRUE(made.ok()) << made.status();
    ring_ = *std::move(made);
  }
  // Sends on a thread of its own; its end is for the caller to wait for.
  Thread Send(HandoffId id, const KvSequence* kv, Status* sent) {
    return Thread("send",
                  [this, id, kv, sent] { *sent = SendKv(ring_.sender.get(), id, *kv, Soon()); });
  }

  fabric::RingPair ring_;
  EngineRig prefill_{TinyConfig()};
  EngineRig decode_{prefill_.model, {.block_tokens = 16}};
};

TEST_F(KvHandoffTest, DecodeGoesOnAsIfItHadComputedThePrompt) {
  const std::vector<TokenId> prompt = RandomTokens(75, 1), more = RandomTokens(9, 2);
  KvSequence computed(prefill_.arena.get()), received(decode_.arena.get());
  prefill_.Compute(&computed, prompt, LogitsOf::kNone);
  auto arrival = KvArrival::Post(ring_.receiver.get(), 7, &received, 75);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  Status sent;
  {
    const Thread thread = Send(7, &computed, &sent);
    EXPECT_EQ(received.tokens(), 0U);
    ASSERT_TRUE(*(*arrival)->Poll(seconds(10)));
  }
  EXPECT_EQ(sent, OkStatus());
  arrival->reset();
  EXPECT_EQ(received.tokens(), 75U);
  EXPECT_TRUE(
      SameBits(decode_.Compute(&received, more).logits, prefill_.Compute(&computed, more).logits));
}

TEST_F(KvHandoffTest, ManyAtOnceFindTheirSequences) {
  constexpr size_t kCount = 8;
  std::vector<KvSequence> computed, received;
  std::vector<std::unique_ptr<KvArrival>> arrivals;
  std::vector<Status> sent(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    computed.emplace_back(prefill_.arena.get());
    received.emplace_back(decode_.arena.get());
    prefill_.Compute(&computed.back(), RandomTokens(30 + i, 50 + i), LogitsOf::kNone);
  }
  for (size_t i = 0; i < kCount; ++i) {
    auto arrival =
        KvArrival::Post(ring_.receiver.get(), 100 + i, &received[i], computed[i].tokens());
    ASSERT_TRUE(arrival.ok()) << arrival.status();
    arrivals.push_back(*std::move(arrival));
  }
  std::vector<Thread> threads;
  for (size_t i = kCount; i-- > 0;) threads.push_back(Send(100 + i, &computed[i], &sent[i]));
  for (auto& arrival : arrivals) EXPECT_TRUE(*arrival->Poll(seconds(10)));
  threads.clear();
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(sent[i], OkStatus());
    EXPECT_EQ(decode_.KvBytes(received[i]), prefill_.KvBytes(computed[i])) << i;
  }
}

TEST_F(KvHandoffTest, ATransferThatDoesNotComeIsAnErrorInTime) {
  KvSequence received(decode_.arena.get());
  auto arrival = KvArrival::Post(ring_.receiver.get(), 1, &received, 20);
  ASSERT_TRUE(arrival.ok());
  EXPECT_FALSE(*(*arrival)->Poll(milliseconds(5)));
  EXPECT_EQ(received.tokens(), 0U);
  ring_.sender.reset();  // its process has gone
  EXPECT_EQ((*arrival)->Poll(seconds(10)).status().code(), StatusCode::kUnavailable);
}

TEST_F(KvHandoffTest, WhatComesWhileItIsLookedForIsNotLost) {
  KvSequence computed(prefill_.arena.get());
  prefill_.Compute(&computed, RandomTokens(60, 4), LogitsOf::kNone);
  for (HandoffId id = 1; id <= 40; ++id) {
    KvSequence received(decode_.arena.get());
    auto arrival = KvArrival::Post(ring_.receiver.get(), id, &received, 60);
    ASSERT_TRUE(arrival.ok());
    Status sent;
    Result<bool> whole = false;
    {
      const Thread thread = Send(id, &computed, &sent);
      const Deadline deadline = Soon();
      while (whole.ok() && !*whole && !deadline.Passed()) whole = (*arrival)->Poll(Duration(0));
      if (!whole.ok() || !*whole) ring_.sender->HangUp();
    }
    ASSERT_TRUE(whole.ok()) << whole.status() << ", hand-over " << id;
    ASSERT_TRUE(*whole) << "hand-over " << id;
    EXPECT_EQ(sent, OkStatus());
    arrival->reset();
  }
}

TEST_F(KvHandoffTest, BlocksOfAnotherModelAreRefused) {
  ModelConfig other = TinyConfig();
  ++other.layers;
  EngineRig stranger(other, {.block_tokens = 8});
  KvSequence computed(stranger.arena.get()), received(decode_.arena.get());
  stranger.Compute(&computed, RandomTokens(8, 3), LogitsOf::kNone);
  auto arrival = KvArrival::Post(ring_.receiver.get(), 2, &received, 8);
  ASSERT_TRUE(arrival.ok());
  Status sent;
  const Thread thread = Send(2, &computed, &sent);
  EXPECT_EQ((*arrival)->Poll(seconds(10)).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(received.tokens(), 0U);
}

TEST_F(KvHandoffTest, WithoutRoomNothingIsAwaited) {
  EngineRig small(prefill_.model, {.block_tokens = 16}, {}, 2);
  KvSequence received(small.arena.get());
  EXPECT_EQ(KvArrival::Post(ring_.receiver.get(), 3, &received, 48).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(KvArrival::Post(ring_.receiver.get(), 3, &received, 0).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(KvArrival::Post(ring_.receiver.get(), uint64_t{1} << 48, &received, 9).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(SendKv(ring_.sender.get(), 3, received, Soon()).code(), StatusCode::kInvalidArgument);
  const auto first = KvArrival::Post(ring_.receiver.get(), 4, &received, 20);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(KvArrival::Post(ring_.receiver.get(), 4, &received, 20).status().code(),
            StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace ems::pdc
