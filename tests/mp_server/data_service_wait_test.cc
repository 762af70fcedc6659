// What must hold: a request that waits for the SSD goes on with the keys that it waits for: what it
// has found, removed or refused is not looked at again, and the answer has the order of its keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/held_io.h"
#include "tests/support/self_verifying.h"

namespace ems::server {
namespace {

using fabric::Outcome;
using testing::Eventually;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

struct ReadsOwner {
  testing::HeldIo reads_;  // before the tier that reads through them
};

class DataServiceWaitTest : private ReadsOwner, public SessionFixture {
 protected:
  DataServiceWaitTest()
      : SessionFixture("data_service_wait",
                       [this](auto inner) { return reads_.Wrap(std::move(inner)); }) {
    Serve(store_.get());
    session_->SetWaker([this] { woken_.Set(); });
  }
  ~DataServiceWaitTest() override {
    reads_.LetGo();
    session_.reset();
    Close();
  }
  // On the SSD, and not in DRAM.
  std::string PutOnSsd(const std::string& key) {
    const std::string value = MakeValue("kv", key, 1, 100 * kKiB);
    const std::unique_ptr<fabric::Session> writer = service_->NewSession();  // wakes nobody
    writer->SetWaker([] {});
    EXPECT_EQ(Put(writer.get(), key, value, wire::kFlagDurableSsd), WireStatus::kOk);
    EXPECT_TRUE(dram_->Remove(kNs, key));
    return value;
  }
  // Once, as a request that may wait.
  Outcome Handle(Op op, const std::vector<std::string>& keys, std::string_view tail = {}) {
    answer_.Clear();
    return session_->Handle(MultiHeader(op, keys, 0), {}, AsBytes(BodyOf(keys, tail)), &answer_);
  }
  std::vector<WireStatus> Statuses() const {
    std::vector<WireStatus> statuses;
    for (const wire::ItemResult& result : Results()) statuses.push_back(result.status);
    return statuses;
  }
  void AwaitRead() { ASSERT_TRUE(reads_.WaitForOne()); }
  void LetReadsGo() {
    AwaitRead();
    reads_.LetGo();
    ASSERT_TRUE(woken_.WaitFor(std::chrono::seconds(10)));
  }

  void Hold() { reads_.Hold(); }
  void HoldWrites() { reads_.Hold(testing::HeldIo::kWrites); }
  void LetWritesGo() { reads_.LetGo(); }

  StopFlag woken_;
};

constexpr WireStatus kOk = WireStatus::kOk;
constexpr WireStatus kMiss = WireStatus::kMiss;

TEST_F(DataServiceWaitTest, WhatWasFoundBeforeTheWaitIsSentInTheOrderOfTheKeys) {
  const std::string on_ssd = PutOnSsd("a");
  ASSERT_EQ(Put("b", "in dram"), kOk);
  Hold();
  const std::vector<std::string> keys = {"a", "b", "none"};
  const Outcome first = Handle(Op::kMultiGet, keys);
  EXPECT_GT(first.wait, Duration::zero());
  EXPECT_EQ(first.status, kOk);
  EXPECT_EQ(Statuses(), (std::vector{kMiss, kOk, kMiss})) << "what there is, should time run out";
  EXPECT_EQ(Payload(), "in dram");

  // Neither is looked up again: they are as they were.
  ASSERT_TRUE(dram_->Remove(kNs, "b"));
  const std::unique_ptr<fabric::Session> other = service_->NewSession();
  ASSERT_EQ(Put(other.get(), "none", "by now"), kOk);
  EXPECT_GT(Handle(Op::kMultiGet, keys).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kMiss, kOk, kMiss}));
  LetReadsGo();
  EXPECT_EQ(Handle(Op::kMultiGet, keys).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kOk, kOk, kMiss}));
  EXPECT_EQ(Results()[0].tier, wire::ItemTier::kSsd);
  EXPECT_EQ(Results()[1].tier, wire::ItemTier::kDram);
  EXPECT_EQ(Results()[2].tier, wire::ItemTier::kUnknown);
  EXPECT_TRUE(Payload() == on_ssd + "in dram");
  const LookupCounts counts = metrics_.lookups().Total(LookupPath::kSocket);
  EXPECT_EQ(counts.hits, 2u) << "each is counted once";
  EXPECT_EQ(counts.misses, 1u);
}

TEST_F(DataServiceWaitTest, WhatDidNotComeInTimeCountsAsAMiss) {
  PutOnSsd("a");
  ASSERT_EQ(Put("b", "in dram"), kOk);
  Hold();
  EXPECT_GT(Handle(Op::kMultiGet, {"a", "b"}).wait, Duration::zero());
  session_->Sent();  // its time ran out
  const LookupCounts counts = metrics_.lookups().Total(LookupPath::kSocket);
  EXPECT_EQ(counts.hits, 1u);
  EXPECT_EQ(counts.misses, 1u);
  LetReadsGo();
}

TEST_F(DataServiceWaitTest, RangesWaitAsWell) {
  const std::string a = PutOnSsd("a");
  const std::string b = PutOnSsd("b");
  Hold();
  const std::vector<std::string> keys = {"a", "b", "a"};
  std::string ranges;
  for (const wire::RangeBody& range :
       {wire::RangeBody{5, 100}, wire::RangeBody{0, 7}, wire::RangeBody{1 << 20, 1}})
    ranges += AsText(wire::RawBytes(range));
  EXPECT_GT(Handle(Op::kMultiGetRange, keys, ranges).wait, Duration::zero());
  LetReadsGo();
  EXPECT_EQ(Handle(Op::kMultiGetRange, keys, ranges).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kOk, kOk, WireStatus::kOutOfRange}));
  EXPECT_EQ(Payload(), a.substr(5, 100) + b.substr(0, 7));
}

TEST_F(DataServiceWaitTest, AValueThatIsRemovedWhileItComesIsAMiss) {
  PutOnSsd("a");
  Hold();
  EXPECT_GT(Handle(Op::kMultiGet, {"a"}).wait, Duration::zero());
  AwaitRead();
  EXPECT_TRUE(Objects().Remove("a", [] {}).found);
  LetReadsGo();
  EXPECT_EQ(Handle(Op::kMultiGet, {"a"}).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kMiss}));
}

TEST_F(DataServiceWaitTest, ANamespaceThatGoesWhileItsValuesComeLeavesMisses) {
  PutOnSsd("a");
  Hold();
  EXPECT_GT(Handle(Op::kMultiGet, {"a"}).wait, Duration::zero());
  AwaitRead();
  store_->SetNamespaces(NamespaceTable{.version = 2, .by_id = {}}, 1.0);
  LetReadsGo();
  EXPECT_EQ(Handle(Op::kMultiGet, {"a"}).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kMiss}));
  session_->Sent();
  EXPECT_EQ(Handle(Op::kMultiGet, {"a"}).status, WireStatus::kStaleNamespace);
}

TEST_F(DataServiceWaitTest, ARequestThatWasAnsweredWhileItWaitedLeavesNothingToTheNext) {
  PutOnSsd("a");
  ASSERT_EQ(Put("b", "in dram"), kOk);
  Hold();
  EXPECT_GT(Handle(Op::kMultiGet, {"a", "a"}).wait, Duration::zero());
  session_->Sent();  // its time ran out
  EXPECT_EQ(Handle(Op::kMultiGet, {"b"}).wait, Duration::zero());
  EXPECT_EQ(Statuses(), (std::vector{kOk}));
  EXPECT_EQ(Payload(), "in dram");
}

TEST_F(DataServiceWaitTest, APutThatTheSsdHasNotTakenInTimeIsSaidNotToBeDurable) {
  HoldWrites();
  const auto put = [&](uint32_t index, const std::string& key, uint16_t flags) {
    const wire::FrameHeader header = Header(Op::kMultiPut, flags);
    fabric::PutTarget target;
    ASSERT_EQ(session_->BeginPut({&header, key, kSlot, 1, index}, &target).status, kOk);
    target.value[0] = std::byte{'v'};
    target.piece_sums[0] = Checksum(AsBytes("v"));
    ASSERT_EQ(session_->EndPut(Checksum(AsBytes("v")), Checksum(AsBytes("v"))), kOk);
  };
  put(0, "in dram", 0);
  put(1, "on ssd", wire::kFlagDurableSsd);
  std::vector<WireStatus> statuses(2, kOk);
  EXPECT_GT(session_->AwaitPuts(statuses).wait, Duration::zero());
  EXPECT_EQ(statuses, (std::vector{kOk, WireStatus::kNotDurable})) << "so far";
  LetWritesGo();
  ASSERT_TRUE(Eventually([&] { return session_->AwaitPuts(statuses).wait == Duration::zero(); }));
  EXPECT_EQ(statuses, (std::vector{kOk, kOk}));
}

TEST_F(DataServiceWaitTest, EachKeyIsRemovedOnceHoweverLongTheOthersTake) {
  PutOnSsd("a");
  const std::vector<std::string> keys = {"none", "a"};
  const Outcome first = Handle(Op::kMultiRemove, keys);
  ASSERT_GT(first.wait, Duration::zero());
  EXPECT_EQ(first.status, kOk);
  EXPECT_EQ(Statuses(), (std::vector{kMiss, WireStatus::kNotDurable})) << "so far";
  const std::unique_ptr<fabric::Session> other = service_->NewSession();
  ASSERT_EQ(Put(other.get(), "none", "by now"), kOk);
  ASSERT_TRUE(Eventually([&] { return Handle(Op::kMultiRemove, keys).wait == Duration::zero(); }));
  EXPECT_EQ(Statuses(), (std::vector{kMiss, kOk}));
  EXPECT_TRUE(dram_->Find(kNs, "none", false).has_value());
}

}  // namespace
}  // namespace ems::server
