// What must hold: a Put becomes visible whole, when this server may still take it, or not at all;
// what it was to be replaced by, compared with or made durable as is said at its end.
#include "mp_server/put_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_server/session_fixture.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::server {
namespace {

using fabric::PutTarget;
using ::testing::HasSubstr;
using wire::Op;
using wire::WireStatus;

class PutSessionTest : public SessionFixture {
 protected:
  explicit PutSessionTest(uint64_t index_memory_bytes = 0)
      : SessionFixture("put_session", {}, index_memory_bytes) {
    puts_.SetWaker([] {});
  }
  ~PutSessionTest() override { puts_.Abort(); }
  fabric::Outcome Begin(std::string_view key, std::string_view value, uint16_t flags = 0,
                        uint32_t index = 0) {
    header_ = Header(Op::kPut, flags);
    header_.deadline_ms = until_;
    target_ = PutTarget();
    sum_ = Checksum(AsBytes(value));
    const fabric::Outcome outcome =
        puts_.Begin({&header_, key, kSlot, value.size(), index}, &target_);
    if (outcome.status != WireStatus::kOk || target_.discard) return outcome;
    std::memcpy(target_.value.data(), value.data(), value.size());
    target_.piece_sums[0] = sum_;  // one piece
    return outcome;
  }
  WireStatus End() { return puts_.End(sum_, sum_); }
  WireStatus PutOne(std::string_view key, std::string_view value, uint16_t flags = 0,
                    uint32_t index = 0) {
    const fabric::Outcome outcome = Begin(key, value, flags, index);
    return outcome.status == WireStatus::kOk ? End() : outcome.status;
  }
  // All Puts of the request, once they are settled.
  std::vector<WireStatus> Await(size_t count) {
    std::vector<WireStatus> statuses(count, WireStatus::kOk);
    EXPECT_TRUE(
        testing::Eventually([&] { return puts_.Await(statuses).wait == Duration::zero(); }));
    return statuses;
  }
  std::string InDram(std::string_view key) {
    const ObjectPin pin = dram_->Get(kNs, key, false);
    return pin ? std::string(AsText(pin.value())) : "(miss)";
  }

  Refusal refusal_;
  RequestCheck check_{store_.get(), &ownership_};
  PutSession puts_{store_.get(), &check_, &metrics_, &refusal_};
  wire::FrameHeader header_;
  uint32_t until_ = 0;  // of requests with kFlagUntil
  PutTarget target_;
  uint64_t sum_ = 0;
};

TEST_F(PutSessionTest, AValueIsVisibleFromItsEndOn) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  EXPECT_EQ(InDram("k"), "(miss)");
  EXPECT_EQ(End(), WireStatus::kOk);
  EXPECT_EQ(InDram("k"), "value");
}

TEST_F(PutSessionTest, WhatIsGivenUpLeavesNothing) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  puts_.Abort();
  EXPECT_EQ(InDram("k"), "(miss)");
  EXPECT_EQ(dram_->Usage()[0].value_bytes, 0u);
  EXPECT_EQ(PutOne("k", "value"), WireStatus::kOk) << "the next one starts from scratch";
}

// Its caller may have put a newer value meanwhile.
TEST_F(PutSessionTest, AValueThatNobodyWaitsForAnyMoreIsNotStored) {
  const auto flags = static_cast<uint16_t>(wire::kFlagUntil | wire::kFlagOverwrite);
  const uint32_t now = wire::ClockMs(Clock::System().Now());
  until_ = now + 60'000;
  ASSERT_EQ(PutOne("k", "newer", flags), WireStatus::kOk);
  until_ = now - 1;
  EXPECT_EQ(PutOne("k", "older", flags), WireStatus::kDeadline);
  EXPECT_EQ(InDram("k"), "newer");
  // Its time passes while its bytes arrive.
  until_ = wire::ClockMs(Clock::System().Now()) + 50;
  ASSERT_EQ(Begin("k", "older", flags).status, WireStatus::kOk);
  ASSERT_TRUE(testing::Eventually([&] { return wire::ClockMs(Clock::System().Now()) > until_; }));
  EXPECT_EQ(End(), WireStatus::kDeadline);
  EXPECT_EQ(InDram("k"), "newer");
}

TEST_F(PutSessionTest, AValueThatIsInDramIsComparedWithoutRoom) {
  ASSERT_EQ(PutOne("k", "value"), WireStatus::kOk);
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  EXPECT_TRUE(target_.discard);
  EXPECT_EQ(End(), WireStatus::kOk);
  EXPECT_EQ(PutOne("k", "other"), WireStatus::kAlreadyExists);
  EXPECT_EQ(PutOne("k", "other", wire::kFlagOverwrite), WireStatus::kOk);
  EXPECT_EQ(InDram("k"), "other");
}

TEST_F(PutSessionTest, AValueThatIsOnTheSsdAloneComesBackToDramFromItsSender) {
  ASSERT_EQ(PutOne("k", "value", wire::kFlagDurableSsd), WireStatus::kOk);
  ASSERT_EQ(Await(1), std::vector{WireStatus::kOk});
  ASSERT_TRUE(dram_->Remove(kNs, "k"));
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  EXPECT_FALSE(target_.discard);
  EXPECT_EQ(End(), WireStatus::kOk);
  EXPECT_EQ(InDram("k"), "value");
  ASSERT_TRUE(dram_->Remove(kNs, "k"));
  EXPECT_EQ(PutOne("k", "other"), WireStatus::kAlreadyExists);
  EXPECT_EQ(InDram("k"), "(miss)");
}

TEST_F(PutSessionTest, ADurablePutIsSettledWhenTheSsdHasIt) {
  const std::vector<std::string> keys = {"a", "b", "c"};
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(PutOne(keys[i], "value", i == 1 ? uint16_t{0} : wire::kFlagDurableSsd, i),
              WireStatus::kOk);
  }
  EXPECT_EQ(Await(3), std::vector(3, WireStatus::kOk));
  for (const char* key : {"a", "c"})
    EXPECT_TRUE(tier_->Find({kNs, KeyHash(key)}, false).has_value()) << key;
  puts_.Sent();
  EXPECT_EQ(Await(0), std::vector<WireStatus>()) << "of the next request nothing waits";
}

TEST_F(PutSessionTest, WhatTheSsdCannotTakeIsRefusedBeforeItIsReceived) {
  header_ = Header(Op::kPut, wire::kFlagDurableSsd);
  EXPECT_EQ(puts_.Begin({&header_, "k", kSlot, 60 * kMiB}, &target_).status, WireStatus::kTooLarge);
  EXPECT_THAT(refusal_.text, HasSubstr("ssd.region_bytes"));
  PutSession dram_puts(&dram_alone_, &check_, &metrics_, &refusal_);
  EXPECT_EQ(dram_puts.Begin({&header_, "k", kSlot, 5}, &target_).status,
            WireStatus::kUnimplemented);
}

TEST_F(PutSessionTest, ATierThatCouldNotBeOpenedIsNotTakenForOneOfSmallValues) {
  ssd::TierOptions options;
  options.folder = "/dev/null/ssd";
  options.capacity_bytes = 64 * kMiB;
  const auto offline = ssd::SsdTier::Open(options);
  ASSERT_EQ(offline->state(), ssd::TierState::kOffline);
  TieredStore store(dram_.get(), offline.get());
  PutSession puts(&store, &check_, &metrics_, &refusal_);
  header_ = Header(Op::kPut, wire::kFlagDurableSsd);
  EXPECT_EQ(puts.Begin({&header_, "k", kSlot, 5}, &target_).status, WireStatus::kUnimplemented);
  EXPECT_THAT(refusal_.text, HasSubstr("offline"));
}

// Of an SSD that large values fill before the memory of its index is full.
class SmallIndexTest : public PutSessionTest {
 protected:
  static constexpr uint64_t kObjects = 20;
  SmallIndexTest() : PutSessionTest(kObjects * ssd::SsdIndex::kObjectMemoryBytes) {}
};

TEST_F(SmallIndexTest, WhatIsTooSmallForTheSsdIsRefusedForGood) {
  ASSERT_EQ(PutOne("there", "value", wire::kFlagDurableSsd), WireStatus::kOk);
  ASSERT_EQ(Await(1), std::vector(1, WireStatus::kOk));
  puts_.Sent();
  for (uint64_t i = 1; i < kObjects - 3; ++i) {
    const std::string key = std::to_string(i);
    (void)tier_->Put({kNs, KeyHash(key)}, ems::testing::MakeObject(key, i, 25 * kMiB / 16, kNs),
                     false, [] {});
    ASSERT_TRUE(testing::Eventually([&] {
      return tier_->Find({kNs, KeyHash(key)}, false).has_value();
    }));
  }
  ASSERT_EQ(PutOne("new", "value"), WireStatus::kOk);
  ASSERT_TRUE(testing::Eventually([&] {
    return tier_->Find({kNs, KeyHash("new")}, false).has_value();
  }));
  EXPECT_EQ(PutOne("newer", "value", wire::kFlagDurableSsd), WireStatus::kQuotaExceeded);
  EXPECT_THAT(refusal_.text, HasSubstr("ssd.index_memory_bytes"));
  EXPECT_EQ(InDram("newer"), "(miss)");
  EXPECT_EQ(tier_->stats().writer.refused_small_objects, 1u);
  EXPECT_EQ(PutOne("there", "value", wire::kFlagDurableSsd), WireStatus::kOk) << "it has its room";
}

TEST_F(PutSessionTest, AValueThatDoesNotMatchItsSendersChecksumIsNotStored) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  EXPECT_EQ(puts_.End(sum_, sum_ + 1), WireStatus::kChecksumMismatch);
  EXPECT_EQ(InDram("k"), "(miss)");
  EXPECT_EQ(dram_->Usage()[0].value_bytes, 0u);
}

TEST_F(PutSessionTest, ALeaseThatEndsDuringTheTransferRefusesIt) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  clock_.Advance(std::chrono::seconds(100));
  EXPECT_EQ(End(), WireStatus::kFenced);
  EXPECT_THAT(refusal_.text, HasSubstr("since the transfer began"));
  EXPECT_EQ(InDram("k"), "(miss)");
}

// The thread may stand still between the last look at the lease and the moment at which the value
// becomes visible.
TEST_F(PutSessionTest, ALeaseThatEndsBeforeTheValueIsVisibleRefusesIt) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  clock_.Advance(std::chrono::seconds(100) - std::chrono::nanoseconds(1));
  EXPECT_EQ(End(), WireStatus::kDeadline);
  EXPECT_EQ(InDram("k"), "(miss)");
}

// The one who had the slot meanwhile may not know yet that it has lost it, and take Puts.
TEST_F(PutSessionTest, ASlotThatWasAnothersDuringTheTransferRefusesItForAWhile) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  NodeInfo self, other;
  self.id = NodeId(1);
  other.id = NodeId(2);
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), other.id);
  ownership_.Install(**DhtView::Make({1, 2000}, {self, other}, slots, false));
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), self.id);
  ownership_.Install(**DhtView::Make({1, 2001}, {self}, slots, false));
  EXPECT_EQ(End(), WireStatus::kRetryLater);
  EXPECT_GT(refusal_.retry_ms, 0u);
  EXPECT_EQ(InDram("k"), "(miss)");
}

TEST_F(PutSessionTest, ANamespaceThatGoesDuringTheTransferRefusesIt) {
  ASSERT_EQ(Begin("k", "value").status, WireStatus::kOk);
  store_->SetNamespaces(NamespaceTable{.version = 2, .by_id = {}}, 1.0);
  EXPECT_EQ(End(), WireStatus::kWrongOwner);
  const fabric::Outcome next = Begin("k", "value");
  EXPECT_EQ(next.status, WireStatus::kStaleNamespace);
  EXPECT_GT(next.wait, Duration::zero());
}

}  // namespace
}  // namespace ems::server
