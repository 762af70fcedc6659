// What must hold: a read that is late is asked of another server that has the value, the first
// value counts and is whole, at most one request in twenty is doubled, and nobody gets a late
// answer.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "mp_sdk/internal/router.h"
#include "proto/copy_hint.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"

namespace ems::internal {
namespace {

using fabric::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MakeValue;
using testing::MemoryServer;
using wire::Op;
using wire::WireStatus;

constexpr uint64_t kBytes = 300'000;

// Two servers: the first owns everything, the second may have copies.
class RouterHedgeTest : public ::testing::Test {
 protected:
  RouterHedgeTest() {
    for (MemoryServer* server : {&owner_, &holder_}) {
      server->store.Insert("hot", MakeValue("ns", "hot", 1, kBytes));
      server->store.Insert("other", MakeValue("ns", "other", 2, kBytes));
    }
    owner_.store.copies = wire::CopyHint{.holders = 1, .seconds = 30}.Pack();
    owner_.store.gate = GateOf(&owner_late_, &owner_asked_);
    holder_.store.gate = GateOf(&holder_late_, &holder_asked_);
    views_.Install(
        ViewOf(1, {ServerNode(1, owner_.address()), ServerNode(2, holder_.address())}, {1}));
  }
  // While `late` is set a Get waits for it to be cleared: each look is another call.
  static std::function<Outcome(const wire::FrameHeader&, SlotId)> GateOf(std::atomic<bool>* late,
                                                                         std::atomic<int>* asked) {
    return [late, asked](const wire::FrameHeader& header, SlotId) -> Outcome {
      if (header.op != Op::kGet) return {};
      if (late->load())
        return {.status = WireStatus::kDeadline, .wait = milliseconds(5), .patience = seconds(60)};
      ++*asked;
      return {};
    };
  }
  Call Get(const std::string& key = "hot", Duration timeout = seconds(30)) {
    Call call(Op::kGet, {key}, timeout);
    call.batch.immutable = true;
    call.Room(0, kBytes);
    return call;
  }
  void ExpectHit(const std::string& key = "hot") {
    Call call = Get(key);
    call.Run(&router_);
    EXPECT_EQ(call.code(), StatusCode::kOk) << call.text();
    EXPECT_EQ(call.batch.items[0].value_bytes, kBytes);
    EXPECT_TRUE(call.buffers[0] == *owner_.store.Find(key)) << "other bytes";
  }
  // Both servers have answered often enough.
  void WarmUp() {
    for (int i = 0; i < 100; ++i) ExpectHit();
    ASSERT_GE(owner_asked_, 40);
    ASSERT_GE(holder_asked_, 40);
  }

  std::atomic<bool> owner_late_{false}, holder_late_{false};
  std::atomic<int> owner_asked_{0}, holder_asked_{0};
  MemoryServer owner_, holder_;
  ViewCache views_;
  Router router_{RouterOptions(), &views_, {}};
};

TEST_F(RouterHedgeTest, ALateServerIsNotWaitedForWhereAnotherHasTheValue) {
  WarmUp();
  const uint64_t before = router_.stats().hedges_won;
  for (std::atomic<bool>* late : {&owner_late_, &holder_late_}) {
    *late = true;
    // In turns: one of two asks the late one first.
    for (int i = 0; i < 2; ++i) ExpectHit();
    *late = false;
  }
  EXPECT_GE(router_.stats().hedges_won, before + 2);
}

TEST_F(RouterHedgeTest, ALateAnswerIsNobodys) {
  WarmUp();
  for (int i = 0; i < 3; ++i) {
    owner_late_ = true;
    ExpectHit();
    ExpectHit();
    owner_late_ = false;
    // What the owner says now would be the answer to another request on the same connection.
    ExpectHit("other");
    ExpectHit();
  }
}

TEST_F(RouterHedgeTest, AtMostOneRequestInTwentyIsDoubled) {
  WarmUp();
  owner_late_ = true;
  const uint64_t before = router_.stats().hedges;
  // The burst, then nothing is left: the call ends at its deadline.
  bool ended = false;
  for (int i = 0; i < 60 && !ended; ++i) {
    Call call = Get("hot", seconds(2));
    call.Run(&router_);
    ended = call.code() == StatusCode::kDeadlineExceeded;
    EXPECT_TRUE(ended || call.code() == StatusCode::kOk) << call.text();
  }
  EXPECT_TRUE(ended);
  EXPECT_LE(router_.stats().hedges - before, 10U + 60 / 20);
  owner_late_ = false;
}

TEST_F(RouterHedgeTest, WithoutCopiesNobodyElseIsAsked) {
  owner_.store.copies = 0;
  for (int i = 0; i < 100; ++i) ExpectHit();
  owner_late_ = true;
  Call call = Get("hot", seconds(1));
  call.Run(&router_);
  EXPECT_EQ(call.code(), StatusCode::kDeadlineExceeded) << call.text();
  EXPECT_EQ(router_.stats().hedges, 0U);
  EXPECT_EQ(holder_asked_, 0);
  owner_late_ = false;
}

TEST_F(RouterHedgeTest, BothLateIsADeadline) {
  WarmUp();
  owner_late_ = holder_late_ = true;
  Call call = Get("hot", seconds(2));
  const Duration took = call.Run(&router_);
  EXPECT_EQ(call.code(), StatusCode::kDeadlineExceeded) << call.text();
  EXPECT_LT(took, seconds(20));
  owner_late_ = holder_late_ = false;
  ExpectHit();
}

TEST_F(RouterHedgeTest, AMissOfTheOtherOneDoesNotEndTheCall) {
  WarmUp();
  holder_.store.Erase("hot");
  owner_late_ = true;
  const uint64_t before = router_.stats().hedges;
  Thread heal("heal", [&] {
    EXPECT_TRUE(testing::Eventually(
        [&] { return router_.stats().hedges > before || router_.hot_stats().misses > 0; }));
    owner_late_ = false;
  });
  for (int i = 0; i < 4; ++i) ExpectHit();
}

}  // namespace
}  // namespace ems::internal
