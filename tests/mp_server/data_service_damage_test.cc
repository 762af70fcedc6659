// What must hold: a value whose bytes have changed in DRAM goes when a request says that it came
// damaged, and nothing else does; it is read from the SSD, or a miss, and a Put stores it anew.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checksum.h"
#include "mp_server/data_service.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

using fabric::Answer;
using fabric::Outcome;
using fabric::Session;
using std::chrono::seconds;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

constexpr SlotId kSlot(11);

class DataServiceDamageTest : public SmallTierTest {
 protected:
  DataServiceDamageTest()
      : SmallTierTest("data_service_damage"), dram_alone_(dram_.get(), nullptr) {
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1));
    NodeInfo node;
    node.id = NodeId(1);
    ownership_.SetSelf(node.id);
    store_->SetOwnedSlots(
        {{1, 1}, ownership_.Install(**DhtView::Make({1, 1}, {node}, slots, false))});
    ownership_.RenewLease(clock_.Now() + seconds(100));
    Serve(&dram_alone_);
  }
  ~DataServiceDamageTest() override { session_.reset(); }
  void Serve(TieredStore* store) {
    session_.reset();
    service_ = std::make_unique<DataService>(store, &ownership_, &metrics_, 55, 8 * kMiB,
                                             [] { return std::string(); });
    session_ = service_->NewSession();
    session_->SetWaker([] {});
  }
  static wire::FrameHeader Header(Op op, uint16_t flags) {
    wire::FrameHeader header;
    header.op = op;
    header.flags = flags;
    header.namespace_id = kNs.id.value();
    header.namespace_generation = kNs.generation;
    header.view = ViewVersion(1, 1).packed();
    header.slot = kSlot.value();
    return header;
  }
  // As the transport does it: asks again while it is to wait.
  WireStatus Ask(const wire::FrameHeader& header, std::string_view key, ConstBytes body = {}) {
    session_->Sent();  // the answer before
    Outcome outcome;
    EXPECT_TRUE(ems::testing::Eventually([&] {
      answer_.Clear();
      outcome = session_->Handle(header, key, body, &answer_);
      return outcome.wait == Duration::zero();
    }));
    return outcome.status;
  }
  WireStatus Ask(Op op, std::string_view key, uint16_t flags = 0) {
    return Ask(Header(op, flags), key);
  }
  WireStatus AskRange(std::string_view key, wire::RangeBody range, uint16_t flags) {
    return Ask(Header(Op::kGetRange, flags), key, wire::RawBytes(range));
  }
  // `tail`: what follows the keys.
  std::vector<wire::ItemResult> AskMany(Op op, const std::vector<std::string>& keys,
                                        std::string_view tail = {}) {
    wire::FrameHeader header = Header(op, wire::kFlagCheck);
    header.item_count = static_cast<uint16_t>(keys.size());
    std::string body;
    for (const std::string& key : keys) {
      wire::ItemHead head;
      head.slot = kSlot.value();
      head.key_bytes = static_cast<uint16_t>(key.size());
      body += AsText(wire::RawBytes(head));
    }
    for (const std::string& key : keys) body += key;
    body += tail;
    EXPECT_EQ(Ask(header, {}, AsBytes(body)), WireStatus::kOk);
    std::vector<wire::ItemResult> results;
    for (size_t i = 0; i < keys.size(); ++i)
      results.push_back(wire::ReadRaw<wire::ItemResult>(
          ConstBytes(answer_.body).subspan(i * sizeof(results[0]))));
    return results;
  }
  WireStatus Put(Session* session, std::string_view key, std::string_view value,
                 uint16_t flags = 0) {
    const wire::FrameHeader header = Header(Op::kPut, flags);
    fabric::PutTarget target;
    const Outcome outcome = session->BeginPut({&header, key, kSlot, value.size()}, &target);
    if (outcome.status != WireStatus::kOk) return outcome.status;
    PieceHasher hasher;
    hasher.Start(target.piece_sums);
    hasher.Update(AsBytes(value));
    if (!target.discard) std::memcpy(target.value.data(), value.data(), value.size());
    WireStatus status = session->EndPut(hasher.Finish(), Checksum(AsBytes(value)));
    EXPECT_TRUE(ems::testing::Eventually(
        [&] { return session->AwaitPuts(std::span(&status, 1)).wait == Duration::zero(); }));
    return status;
  }
  WireStatus Put(std::string_view key, std::string_view value, uint16_t flags = 0) {
    return Put(session_.get(), key, value, flags);
  }
  // A cell that goes bad. Whoever holds the object has the bytes from now on.
  void FlipABit(std::string_view key, uint64_t byte) {
    const ObjectPin pin = dram_->Get(kNs, key, false);
    ASSERT_TRUE(pin);
    *const_cast<std::byte*>(pin.value().data() + byte) ^= std::byte{8};
  }
  std::string Payload() const {
    std::string all;
    for (const ConstBytes part : answer_.payload) all += AsText(part);
    return all;
  }
  uint64_t DamagedObjects() const { return dram_->Usage()[0].damaged_objects; }

  ManualClock clock_;
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
  Ownership ownership_{&clock_};
  TieredStore dram_alone_;
  std::unique_ptr<DataService> service_;
  std::unique_ptr<Session> session_;
  Answer answer_;
};

TEST_F(DataServiceDamageTest, AValueGoesWhenARequestSaysThatItCameDamaged) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, kPieceBytes, 3 * kPieceBytes + 5}) {
    const std::string key = "k" + std::to_string(bytes);
    const std::string value = MakeValue("kv", key, 1, bytes);
    ASSERT_EQ(Put(key, value), WireStatus::kOk);
    EXPECT_EQ(Ask(Op::kGet, key, wire::kFlagCheck), WireStatus::kOk) << "it is right";
    EXPECT_TRUE(Payload() == value);
    FlipABit(key, bytes - 1);
    EXPECT_EQ(Ask(Op::kGet, key), WireStatus::kOk) << "nobody has looked";
    EXPECT_NE(Checksum(AsBytes(Payload())), answer_.checksum);
    EXPECT_EQ(Put(key, value), WireStatus::kOk) << "taken for what it should be";
    EXPECT_EQ(Ask(Op::kGet, key, wire::kFlagCheck), WireStatus::kMiss) << bytes;
    EXPECT_EQ(Ask(Op::kExists, key), WireStatus::kMiss);
    EXPECT_EQ(Put(key, value), WireStatus::kOk);
    EXPECT_EQ(Ask(Op::kGet, key, wire::kFlagCheck), WireStatus::kOk);
    EXPECT_TRUE(Payload() == value);
  }
  EXPECT_EQ(DamagedObjects(), 4U);
}

TEST_F(DataServiceDamageTest, OfManyValuesTheDamagedOnesGo) {
  const std::string value = MakeValue("kv", "big", 1, 3 * kPieceBytes);
  for (const char* key : {"a", "b", "c"}) ASSERT_EQ(Put(key, value), WireStatus::kOk);
  FlipABit("b", 2 * kPieceBytes);
  const std::vector<wire::ItemResult> results = AskMany(Op::kMultiGet, {"a", "b", "c"});
  EXPECT_EQ(results[0].status, WireStatus::kOk);
  EXPECT_EQ(results[1].status, WireStatus::kMiss);
  EXPECT_EQ(results[2].status, WireStatus::kOk);
  EXPECT_TRUE(Payload() == value + value);
  EXPECT_EQ(DamagedObjects(), 1U);
}

// A range of whole pieces takes their checksums from the table, so the server does not see by
// itself that one is damaged.
TEST_F(DataServiceDamageTest, ARangeOfADamagedValueIsAMissToo) {
  const std::string value = MakeValue("kv", "k", 1, 3 * kPieceBytes + 5);
  const wire::RangeBody whole_piece{.offset = kPieceBytes, .length = kPieceBytes};
  for (const bool multi : {false, true}) {
    ASSERT_EQ(Put("k", value), WireStatus::kOk);
    FlipABit("k", kPieceBytes + 77);
    EXPECT_EQ(AskRange("k", whole_piece, 0), WireStatus::kOk);
    if (multi) {
      EXPECT_EQ(AskMany(Op::kMultiGetRange, {"k"}, AsText(wire::RawBytes(whole_piece)))[0].status,
                WireStatus::kMiss);
    } else {
      EXPECT_EQ(AskRange("k", whole_piece, wire::kFlagCheck), WireStatus::kMiss);
    }
    EXPECT_EQ(Ask(Op::kExists, "k"), WireStatus::kMiss);
  }
  EXPECT_EQ(DamagedObjects(), 2U);
}

TEST_F(DataServiceDamageTest, AnEdgeOfARangeIsLookedAtAnyway) {
  const std::string value = MakeValue("kv", "k", 1, 3 * kPieceBytes + 5);
  ASSERT_EQ(Put("k", value), WireStatus::kOk);
  FlipABit("k", kPieceBytes + 77);
  EXPECT_EQ(AskRange("k", {.offset = 1, .length = kPieceBytes}, 0), WireStatus::kChecksumMismatch);
  EXPECT_EQ(Ask(Op::kExists, "k"), WireStatus::kMiss);
  EXPECT_EQ(DamagedObjects(), 1U);
}

TEST_F(DataServiceDamageTest, WhoeverSendsItKeepsItsBytesWhenItGoes) {
  ASSERT_EQ(Put("k", MakeValue("kv", "k", 1, kMiB)), WireStatus::kOk);
  FlipABit("k", 99);
  EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
  const std::string sent = Payload();
  const std::unique_ptr<Session> other = service_->NewSession();
  for (int i = 0; i < 2; ++i) {
    Answer answer;
    EXPECT_EQ(other->Handle(Header(Op::kGet, wire::kFlagCheck), "k", {}, &answer).status,
              WireStatus::kMiss);
    other->Sent();
  }
  for (int i = 0; i < 40; ++i)  // would take its place
    (void)Put(other.get(), "other" + std::to_string(i), std::string(kMiB, '#'));
  EXPECT_TRUE(Payload() == sent) << "pinned until it has been sent";
  EXPECT_EQ(DamagedObjects(), 1U);
}

TEST_F(DataServiceDamageTest, WhatIsDamagedInDramIsReadFromTheSsd) {
  Serve(store_.get());
  const std::string value = MakeValue("kv", "k", 1, 3 * kPieceBytes);
  for (uint64_t times = 1; times <= 2; ++times) {
    ASSERT_EQ(Put("k", value, wire::kFlagDurableSsd), WireStatus::kOk);
    FlipABit("k", kPieceBytes);
    if (times == 1) {
      EXPECT_EQ(Ask(Op::kGet, "k", wire::kFlagCheck), WireStatus::kOk);
    } else {
      EXPECT_EQ(AskMany(Op::kMultiGet, {"k", "none"})[0].status, WireStatus::kOk);
    }
    EXPECT_TRUE(Payload() == value);
    EXPECT_EQ(tier_->stats().reader.reads, times);
    EXPECT_EQ(Ask(Op::kGet, "k"), WireStatus::kOk);
    EXPECT_TRUE(Payload() == value);
    EXPECT_EQ(tier_->stats().reader.reads, times) << "from DRAM again";
  }
  EXPECT_EQ(DamagedObjects(), 2U);
}

}  // namespace
}  // namespace ems::server
