// What must hold: what is kept is told to who asks for the very era that followed, and to nobody
// else.
#include "mp_server/kept_answer.h"

#include "mp_server/request_check.h"
#include "mp_server/store/namespace_store.h"
#include "proto/kept_page.h"
#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using wire::KeptHead;
using wire::KeptState;
using wire::WireStatus;

class KeptAnswerTest : public ForwardTest {
 protected:
  void Begin() {
    Start(1);
    Start(2);
    Move({1, 2}, 1);
    ASSERT_EQ(Node(1).Put(kSlot, "k", "value"), WireStatus::kOk);
  }
  KeptHead Ask(const std::string& key, Era era) {
    KeptHead head;
    EXPECT_EQ(Node(1).AskKept(kSlot, key, era, &head), WireStatus::kOk);
    return head;
  }
};

TEST_F(KeptAnswerTest, TheValueIsForTheNextEraAlone) {
  Begin();
  EXPECT_EQ(Ask("k", {kHistory, epoch_ + 1}).state, KeptState::kGone) << "it has the slot still";
  Move({1, 2}, 2);
  EXPECT_EQ(Ask("k", era()).state, KeptState::kValue);
  EXPECT_EQ(Node(1).Payload(), "value");
  EXPECT_EQ(Ask("k", {kHistory, era().since + 1}).state, KeptState::kGone);
  EXPECT_EQ(Ask("k", {kHistory, era().since - 1}).state, KeptState::kGone);
  EXPECT_EQ(Ask("k", {kHistory + 1, era().since}).state, KeptState::kGone);
  EXPECT_EQ(Ask("other", era()).state, KeptState::kGone) << "it does not know the time before";
}

// Between the two, what was lost is neither readable nor kept.
TEST_F(KeptAnswerTest, WhoAsksBeforeTheViewIsSettledWaits) {
  Begin();
  Publish({1, 2}, 2);
  (void)Node(1).ownership().Install(*view_);
  const RequestCheck check(&Node(1).store(), &Node(1).ownership());
  const auto waits = [&](wire::Op op) {
    TieredNamespace objects;
    Refusal refusal;
    return check.Open(Node(1).Header(op, kSlot), &objects, &refusal).wait > Duration::zero();
  };
  EXPECT_TRUE(waits(wire::Op::kGetKept));
  EXPECT_TRUE(waits(wire::Op::kMultiHasKept));
  EXPECT_TRUE(waits(wire::Op::kScanKept));
  EXPECT_FALSE(waits(wire::Op::kGet));
  Node(1).ownership().Settle();
  EXPECT_FALSE(waits(wire::Op::kGetKept));
  EXPECT_FALSE(waits(wire::Op::kMultiHasKept));
}

TEST_F(KeptAnswerTest, TheKeysAreListedForTheNextEraAlone) {
  Begin();
  Move({1, 2}, 2);
  const auto ask = [&](Era of) {
    const wire::ScanKeptBody body{.era = {of.history, of.since}};
    wire::FrameHeader header = Node(1).Header(wire::Op::kScanKept, kSlot);
    header.namespace_id = header.namespace_generation = 0;
    fabric::Answer answer;
    EXPECT_EQ(Node(1).Settle(header, {}, wire::RawBytes(body), &answer), WireStatus::kOk);
    const auto page = wire::ParseKeptPage(answer.body);
    EXPECT_TRUE(page.ok());
    return *page;
  };
  const wire::KeptPage page = ask(era());
  EXPECT_EQ(page.ns(), ForwardNode::kNs);
  ASSERT_EQ(page.keys.keys.size(), 1U);
  EXPECT_EQ(page.keys.keys.front().key, "k");
  EXPECT_EQ(page.keys.keys.front().value_bytes, 5U);
  EXPECT_TRUE(ask({kHistory, era().since + 1}).keys.keys.empty());
}

// What it keeps by a view that it has not settled is not all yet.
TEST_F(KeptAnswerTest, AListWaitsForTheView) {
  Begin();
  Publish({1, 2}, 2);
  (void)Node(1).ownership().Install(*view_);
  const RequestCheck check(&Node(1).store(), &Node(1).ownership());
  Refusal refusal;
  const wire::FrameHeader header = Node(1).Header(wire::Op::kScanKept, kSlot);
  EXPECT_GT(check.Reached(header, &refusal).wait, Duration::zero());
  Node(1).ownership().Settle();
  EXPECT_EQ(check.Reached(header, &refusal).status, WireStatus::kOk);
}

TEST_F(KeptAnswerTest, NoLeaseIsNeeded) {
  Begin();
  Move({1, 2}, 2);
  Node(1).ownership().Revoke();
  EXPECT_EQ(Ask("k", era()).state, KeptState::kValue);
  clock_.Advance(ForwardNode::kKeepFor);
  EXPECT_EQ(Ask("k", era()).state, KeptState::kGone);
}

TEST_F(KeptAnswerTest, WhoHeldTheSlotAllTheTimeSaysWhomToAsk) {
  Begin();
  Move({1, 2}, 2);
  const Era before = era();
  Move({1, 2}, 1);
  // Server 2 lost it: what it had open it vouches for.
  KeptHead head;
  EXPECT_EQ(Node(2).AskKept(kSlot, "k", era(), &head), WireStatus::kOk);
  EXPECT_EQ(head.state, KeptState::kUntouched);
  EXPECT_EQ(head.node, 1U);
  EXPECT_EQ(head.since, before.since);
}

TEST_F(KeptAnswerTest, WhatIsSentStaysWhileItIsSent) {
  Begin();
  Move({1, 2}, 2);
  EXPECT_EQ(Ask("k", era()).state, KeptState::kValue);
  while (EvictKept(&Node(1).dram().Open(ForwardNode::kNs)->objects(), 1)) {
  }
  EXPECT_EQ(Node(1).Payload(), "value");
  EXPECT_EQ(Node(1).Usage().kept_objects, 0U);
}

}  // namespace
}  // namespace ems::server
