// What must hold: a value whose bytes have changed in DRAM goes when a request says that it came
// damaged, and nothing else does; it is read from the SSD, or a miss, and a Put stores it again.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checksum.h"
#include "mp_server/data_service.h"
#include "tests/mp_server/session_fixture.h"
#include "tests/support/self_verifying.h"

namespace ems::server {
namespace {

using fabric::Answer;
using fabric::Session;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

class DataServiceDamageTest : public SessionFixture {
 protected:
  DataServiceDamageTest() : SessionFixture("data_service_damage") { Serve(&dram_alone_); }
  // A cell that goes bad. All holders of the object have these bytes from now on.
  void FlipABit(std::string_view key, uint64_t byte) {
    const ObjectPin pin = dram_->Get(kNs, key, false);
    ASSERT_TRUE(pin);
    *const_cast<std::byte*>(pin.value().data() + byte) ^= std::byte{8};
  }
  uint64_t DamagedObjects() const { return dram_->Usage()[0].damaged_objects; }
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
