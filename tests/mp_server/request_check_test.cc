// What must hold: a request is let in only while the server may answer it, and a refusal says why
// and when to come back.
#include "mp_server/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using ::testing::HasSubstr;
using wire::WireStatus;

constexpr NamespaceRef kNs{NamespaceId(1), 3};
constexpr NamespaceRef kImmutable{NamespaceId(2), 1};
constexpr SlotId kSlot(11);

class RequestCheckTest : public ::testing::Test {
 protected:
  RequestCheckTest() {
    SetNamespaces({kNs, kImmutable});
    ownership_.SetSelf(NodeId(1));
    Own(1, {1, 2});
    ownership_.SetActive(epoch_);
    ownership_.RenewLease(clock_.Now() + std::chrono::seconds(100));
    joining_.SetSelf(NodeId(1));
  }
  void SetNamespaces(const std::vector<NamespaceRef>& refs) {
    NamespaceTable table;
    for (const NamespaceRef ref : refs) {
      table.by_id[ref.id].ref = ref;
      table.by_id[ref.id].immutable = ref == kImmutable;
    }
    dram_.SetNamespaces(table, 1.0);
  }
  // All slots are `owner`'s in the next view, which shows the nodes in `live`.
  void Own(uint32_t owner, const std::vector<uint32_t>& live) {
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
    std::vector<NodeInfo> nodes(live.size());
    for (size_t i = 0; i < live.size(); ++i) nodes[i].id = NodeId(live[i]);
    ownership_.Install(**DhtView::Make({1, ++epoch_}, nodes, slots, false));
  }
  fabric::Outcome Open(ViewVersion view = {}, NamespaceRef ns = kNs, wire::Op op = wire::Op::kGet) {
    wire::FrameHeader header;
    header.op = op;
    header.namespace_id = ns.id.value();
    header.namespace_generation = ns.generation;
    header.view = view.packed();
    return check_.Open(header, &objects_, &refusal_);
  }

  ManualClock clock_;
  uint64_t epoch_ = 0;
  SegmentPool pool_{SmallPool(4 * kMiB)};
  ObjectStore dram_{{.pool = &pool_}};
  TieredStore store_{&dram_, nullptr};
  Ownership ownership_{&clock_};
  RequestCheck check_{&store_, &ownership_};
  Ownership joining_{&clock_};  // of a server that has had no lease yet
  RequestCheck joining_check_{&store_, &joining_};
  TieredNamespace objects_;
  Refusal refusal_;
};

TEST_F(RequestCheckTest, LetsInWhatItMayAnswer) {
  const fabric::Outcome outcome = Open({1, 1});
  EXPECT_EQ(outcome.status, WireStatus::kOk);
  EXPECT_EQ(outcome.wait, Duration::zero());
  EXPECT_TRUE(objects_);
  EXPECT_EQ(check_.Read(kSlot, &refusal_), WireStatus::kOk);
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kOk);
  EXPECT_EQ(refusal_.text, "");
}

TEST_F(RequestCheckTest, AGenerationThatIsNotKnownIsWaitedFor) {
  for (const uint32_t generation : {2U, 4U}) {
    const fabric::Outcome outcome = Open({}, {kNs.id, generation});
    EXPECT_EQ(outcome.status, WireStatus::kStaleNamespace);
    EXPECT_GT(outcome.wait, Duration::zero());
    EXPECT_FALSE(objects_);
  }
}

TEST_F(RequestCheckTest, ANamespaceThatIsDeletedIsNotOpenedAgainFromMemory) {
  ASSERT_EQ(Open().status, WireStatus::kOk);
  SetNamespaces({{kNs.id, kNs.generation + 1}});
  EXPECT_EQ(Open().status, WireStatus::kStaleNamespace) << "though it was held open";
  EXPECT_EQ(Open({}, {kNs.id, kNs.generation + 1}).status, WireStatus::kOk);
  objects_.Rest();
  SetNamespaces({});
  EXPECT_EQ(Open({}, {kNs.id, kNs.generation + 1}).status, WireStatus::kStaleNamespace);
}

TEST_F(RequestCheckTest, ANewerViewIsWaitedFor) {
  const fabric::Outcome outcome = Open({1, 2});
  EXPECT_EQ(outcome.status, WireStatus::kWrongOwner);
  EXPECT_GT(outcome.wait, Duration::zero());
  Own(1, {1, 2});
  EXPECT_EQ(Open({1, 2}).status, WireStatus::kOk);
}

TEST_F(RequestCheckTest, ANewerViewIsToldOf) {
  int told = 0;
  check_.SetOnNewerView([&] { ++told; });
  EXPECT_EQ(Open(ViewVersion(1, epoch_)).status, WireStatus::kOk);
  EXPECT_EQ(told, 0);
  EXPECT_EQ(Open(ViewVersion(1, epoch_ + 1)).status, WireStatus::kWrongOwner);
  EXPECT_EQ(told, 1);
  (void)Open(ViewVersion(1, epoch_), kNs, wire::Op::kGetKept);
  EXPECT_EQ(told, 1) << "the view is here, and only not settled yet";
}

TEST_F(RequestCheckTest, ADrainingServerSendsEveryoneAway) {
  check_.Drain();
  const fabric::Outcome outcome = Open();
  EXPECT_EQ(outcome.status, WireStatus::kRetryLater);
  EXPECT_EQ(outcome.wait, Duration::zero());
  EXPECT_GT(refusal_.retry_ms, 0u);
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kRetryLater)
      << "a Put that began before is not published: others may take Puts already";
}

TEST_F(RequestCheckTest, SlotsOfOthersAreRefused) {
  Own(2, {1, 2});
  EXPECT_EQ(check_.Read(kSlot, &refusal_), WireStatus::kWrongOwner);
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kWrongOwner);
  EXPECT_THAT(refusal_.text, HasSubstr("slot 11"));
}

TEST_F(RequestCheckTest, ASlotThatWasGainedIsReadAndNotWrittenUntilItsViewIsActive) {
  Own(2, {1, 2});
  Own(1, {1});
  EXPECT_EQ(check_.Read(kSlot, &refusal_), WireStatus::kOk);
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kRetryLater);
  EXPECT_GT(refusal_.retry_ms, 0u);
  ownership_.SetActive(epoch_);
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kOk);
}

// By then another server may have replaced or removed it.
TEST_F(RequestCheckTest, WithoutALeaseWhatMayChangeIsNotRead) {
  clock_.Advance(std::chrono::seconds(100));
  for (const wire::Op op :
       {wire::Op::kGet, wire::Op::kMultiGet, wire::Op::kGetRange, wire::Op::kMultiGetRange,
        wire::Op::kExists, wire::Op::kMultiExists, wire::Op::kScan}) {
    EXPECT_EQ(Open({}, kNs, op).status, WireStatus::kFenced) << wire::OpName(op);
    EXPECT_EQ(Open({}, kImmutable, op).status, WireStatus::kOk) << wire::OpName(op);
  }
  EXPECT_EQ(Open({}, kNs, wire::Op::kRemove).status, WireStatus::kOk) << "each key is asked for";
  EXPECT_EQ(Open({}, kNs, wire::Op::kGet).wait, Duration::zero()) << "no lease is on its way";
  EXPECT_EQ(check_.Write(kSlot, &refusal_), WireStatus::kFenced);
}

// Clients that have the view by which it joined ask it then.
TEST_F(RequestCheckTest, AServerThatJoinsIsWaitedForUntilItsFirstLease) {
  SlotTable slots;
  slots.set_owner(kSlot, NodeId(1));
  std::vector<NodeInfo> nodes(1);
  nodes[0].id = NodeId(1);
  joining_.Install(**DhtView::Make({1, 1}, nodes, slots, false));
  joining_.SetActive(1);
  wire::FrameHeader header;
  header.op = wire::Op::kGet;
  header.namespace_id = kNs.id.value();
  header.namespace_generation = kNs.generation;
  const fabric::Outcome read = joining_check_.Open(header, &objects_, &refusal_);
  EXPECT_EQ(read.status, WireStatus::kRetryLater);
  EXPECT_GT(read.wait, Duration::zero());
  EXPECT_EQ(joining_check_.Write(kSlot, &refusal_), WireStatus::kRetryLater);
  joining_.RenewLease(clock_.Now() + std::chrono::seconds(1));
  EXPECT_EQ(joining_check_.Open(header, &objects_, &refusal_).status, WireStatus::kOk);
  EXPECT_EQ(joining_check_.Write(kSlot, &refusal_), WireStatus::kOk);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_EQ(joining_check_.Write(kSlot, &refusal_), WireStatus::kFenced)
      << "that was the first one";
}

}  // namespace
}  // namespace ems::server
