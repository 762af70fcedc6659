// What must hold: after a restart in place every object is there, byte for byte, that nobody can
// have changed meanwhile, and no other: not of a slot that another server has had, not of a
// namespace that is another one, not from a record that was used, is damaged or of another life.
#include "mp_server/restart/take_over.h"

#include <gtest/gtest.h>

#include <cstring>

#include "mp_server/store/namespace_store.h"
#include "tests/mp_server/restart/restart_fixture.h"
#include "tests/mp_server/shm/shared_reader.h"

namespace ems::server {
namespace {

class TakeOverTest : public RestartFixture {
 protected:
  Status Refused(const TakeOver::Expected& expected) {
    return TakeOver::Begin(kept_.Copies(), expected).status();
  }
};

TEST_F(TakeOverTest, EverythingIsThereAndMemoryWorksOn) {
  BeginCold(32 * kMiB);
  auto a = PutMany(kA, 70, "a");
  const auto b = PutMany(kB, 7, "b");
  ASSERT_TRUE(store_->Remove(kA, "a3"));
  a.erase("a3");
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(Expected(), 32 * kMiB), OkStatus());
  const TakeOver::Taken taken = Adopt(Grant(6), Table({kA, kB}));
  EXPECT_EQ(taken.objects, a.size() + b.size());
  EXPECT_EQ(taken.dropped, 0u);
  EXPECT_EQ(taken_->bytes(), 0u);
  ExpectAll(kA, a);
  ExpectAll(kB, b);
  EXPECT_EQ(Read(kA, "a3"), "(miss)");
  // What is free is used again, what is taken is not: several times the pool.
  ASSERT_TRUE(pool_->WaitReady(32 * kMiB, Soon()).ok());
  for (int round = 0; round < 20; ++round) {
    for (const auto& [key, bytes] : PutMany(kA, 21, "n" + std::to_string(round) + "-"))
      EXPECT_EQ(Read(kA, key), testing::MakeValue("kv", key, 1, bytes)) << key;
    for (const auto& [key, bytes] : a) {
      const std::string read = Read(kA, key);
      EXPECT_TRUE(read == "(miss)" || read == testing::MakeValue("kv", key, 1, bytes)) << key;
    }
  }
  for (const auto& [key, bytes] : a) (void)store_->Remove(kA, key);
}

TEST_F(TakeOverTest, TheColdestStillGoesFirst) {
  BeginCold();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(Put(kA, "k" + std::to_string(i), 20'000), OkStatus());
  EXPECT_TRUE(store_->Find(kA, "k0", true).has_value());  // not the coldest any more
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  ASSERT_EQ(Adopt(Grant(6), Table({kA, kB})).objects, 40u);
  EXPECT_EQ(store_->Open(kA)->room().EvictColdest(20, UINT64_MAX), 20u);
  EXPECT_NE(Read(kA, "k0"), "(miss)");
  for (int i = 1; i < 40; ++i)
    EXPECT_EQ(Read(kA, "k" + std::to_string(i)) == "(miss)", i <= 20) << i;
}

TEST_F(TakeOverTest, WhereThereMayBeFewerObjectsTheHottestStay) {
  constexpr int kMost = 4096;  // of a namespace in a pool of 2 MiB
  BeginCold(16 * kMiB);
  for (int i = 0; i < kMost + 900; ++i) ASSERT_EQ(Put(kA, "k" + std::to_string(i), 8), OkStatus());
  EXPECT_TRUE(store_->Find(kA, "k0", true).has_value());  // not the coldest any more
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(Expected(), 2 * kMiB), OkStatus());
  EXPECT_EQ(Adopt(Grant(6), Table({kA, kB})).objects, static_cast<uint64_t>(kMost));
  EXPECT_NE(Read(kA, "k0"), "(miss)");
  for (int i = 1; i < kMost + 900; ++i)
    EXPECT_EQ(Read(kA, "k" + std::to_string(i)) == "(miss)", i <= 900) << i;
}

TEST_F(TakeOverTest, WhereTheQuotaIsSmallerTheHottestStay) {
  BeginCold();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(Put(kA, "k" + std::to_string(i), 20'000), OkStatus());
  EXPECT_TRUE(store_->Find(kA, "k0", true).has_value());
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  NamespaceTable table = Table({kA, kB});
  table.by_id[kA.id].dram_quota_bytes = 400'000;
  Adopt(Grant(6), table);
  EXPECT_NE(Read(kA, "k0"), "(miss)");
  for (int i = 1; i < 40; ++i)
    EXPECT_EQ(Read(kA, "k" + std::to_string(i)) == "(miss)", i <= 20) << i;
}

TEST_F(TakeOverTest, GenerationsGoOnAboveThoseThatWere) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  store_->Open(kA)->SkipGenerations(uint64_t{1} << 55);  // beyond what the time gives
  ASSERT_EQ(Put(kA, "l", 1000), OkStatus());
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  ASSERT_EQ(Adopt(Grant(6), Table({kA, kB})).objects, 2u);
  EXPECT_GE(store_->Open(kA)->newest_generation(), (uint64_t{1} << 55) + 1);
}

TEST_F(TakeOverTest, SlotsThatOthersHadAreDropped) {
  BeginCold();
  ASSERT_EQ(Put(kA, "kept", 1000, 7), OkStatus());
  ASSERT_EQ(Put(kA, "came back", 1000, 8), OkStatus());
  ASSERT_EQ(Put(kA, "lost", 1000, 9), OkStatus());
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  ssd::SlotGrant grant = Grant(8);
  grant.since[8] = 8;  // another owner's in view 7
  grant.owned[9] = false;
  const TakeOver::Taken taken = Adopt(grant, Table({kA, kB}));
  EXPECT_EQ(taken, (TakeOver::Taken{1, 1000, 2}));
  EXPECT_NE(Read(kA, "kept"), "(miss)");
  EXPECT_EQ(Read(kA, "came back"), "(miss)");
}

TEST_F(TakeOverTest, ASlotThatIsLostWhileTheNamespacesAreNotKnownIsDropped) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000, 8), OkStatus());
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  ssd::SlotGrant without = Grant(6);
  without.owned[8] = false;
  taken_->Expect(without);
  ssd::SlotGrant again = Grant(8);
  again.since[8] = 8;
  EXPECT_EQ(Adopt(again, Table({kA, kB})).objects, 0u);
}

TEST_F(TakeOverTest, OfAnotherHistoryOrForAnotherServerNothingIsTaken) {
  for (int i = 0; i < 2; ++i) {
    BeginCold();
    ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
    ASSERT_TRUE(HandOver().ok());
    ASSERT_EQ(BeginNext(), OkStatus());
    ssd::SlotGrant grant = Grant(6);
    if (i == 0) grant.history = 10;
    if (i == 1) grant.shown = false;
    EXPECT_EQ(Adopt(grant, Table({kA, kB})).objects, 0u) << i;
    End();
  }
}

TEST_F(TakeOverTest, ANamespaceThatIsGoneOrMadeAnewHasNothing) {
  BeginCold();
  (void)PutMany(kA, 7, "a");
  (void)PutMany(kB, 7, "b");
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  const NamespaceRef anew{kA.id, kA.generation + 1};
  const TakeOver::Taken taken = Adopt(Grant(6), Table({anew}));
  EXPECT_EQ(taken.objects, 0u);
  EXPECT_EQ(taken.dropped, 14u);
  EXPECT_EQ(Read(anew, "a1"), "(miss)");
  // Their memory is the pool's again.
  ASSERT_TRUE(pool_->WaitReady(16 * kMiB, Soon()).ok());
}

TEST_F(TakeOverTest, ARecordOfAnotherLifeIsRefused) {
  BeginCold();
  (void)PutMany(kA, 7, "a");
  ASSERT_TRUE(HandOver().ok());
  TakeOver::Expected used = Expected();
  used.number = 0;  // the number is given out once
  EXPECT_EQ(Refused(used).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected other = Expected();
  other.number = 20;
  EXPECT_EQ(Refused(other).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected between = Expected();
  between.highest.version = ViewVersion(1, 6);  // a life that had a view, and knew of no record
  EXPECT_EQ(Refused(between).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected twin = Expected();
  twin.highest.fingerprint = 26;
  EXPECT_EQ(Refused(twin).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected folder = Expected();
  folder.folder_id = 1;
  EXPECT_EQ(Refused(folder).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected cluster = Expected();
  cluster.cluster = ClusterId(1);
  EXPECT_EQ(Refused(cluster).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected tier = Expected();
  tier.tier_mark = 1;
  EXPECT_EQ(Refused(tier).code(), StatusCode::kFailedPrecondition);
  TakeOver::Expected huge = Expected();
  huge.huge_pages = HugePages::kRequire;
  EXPECT_EQ(Refused(huge).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(BeginNext(), OkStatus());  // the right one
}

TEST_F(TakeOverTest, WithoutASegmentOrARecordNothingIsTaken) {
  BeginCold();
  (void)PutMany(kA, 7, "a");
  ASSERT_TRUE(HandOver().ok());
  std::vector<fabric::Fd> some = kept_.Copies();
  some.erase(some.begin());
  EXPECT_EQ(TakeOver::Begin(std::move(some), Expected()).status().code(), StatusCode::kDataLoss);
  some = kept_.Copies();
  some.pop_back();  // the record
  EXPECT_EQ(TakeOver::Begin(std::move(some), Expected()).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(TakeOver::Begin({}, Expected()).status().code(), StatusCode::kNotFound);
}

TEST_F(TakeOverTest, AnObjectWhoseHeaderOrKeyHasChangedIsDroppedAlone) {
  BeginCold();
  ASSERT_EQ(Put(kA, "good", 1000), OkStatus());
  ASSERT_EQ(Put(kA, "header", 1000), OkStatus());
  ASSERT_EQ(Put(kA, "key", 1000), OkStatus());
  ASSERT_EQ(Put(kA, "run", 500'000), OkStatus());
  for (const char* key : {"header", "key", "run"}) {
    const ObjectPin pin = store_->Get(kA, key, false);
    auto* const text = const_cast<char*>(pin.key().data());
    auto* const header = reinterpret_cast<ObjectHeader*>(
        text - (pin.value().size() > kPieceBytes ? TableBytes(pin.value().size()) : 0) -
        kObjectHeaderBytes);
    if (std::string_view(key) == "key")
      text[0] ^= 1;
    else
      header->checksum ^= 1;
  }
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  EXPECT_EQ(Adopt(Grant(6), Table({kA, kB})), (TakeOver::Taken{1, 1000, 3}));
  EXPECT_NE(Read(kA, "good"), "(miss)");
  ASSERT_TRUE(pool_->WaitReady(16 * kMiB, Soon()).ok());
  for (int i = 0; i < 30; ++i) ASSERT_EQ(Put(kA, "n" + std::to_string(i), 200'000), OkStatus());
}

TEST_F(TakeOverTest, ToReadersOfTheProcessBeforeItIsNoObjectAnyMore) {
  BeginCold();
  ASSERT_EQ(Put(kA, "k", 1000), OkStatus());
  const uint64_t boot_before = pool_->boot_id();
  const uint32_t id = store_->Open(kA)->objects().slabs().SegmentIds().front();
  const auto opened = store_->Open(kA)->OpenSegment(id);
  ASSERT_TRUE(opened.ok());
  const Mapping old(*opened->fd, opened->bytes);  // as a client has it
  const auto* header = reinterpret_cast<const ObjectHeader*>(old.data());
  ASSERT_EQ(header->boot_id, boot_before);
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  ASSERT_EQ(Adopt(Grant(6), Table({kA, kB})).objects, 1u);
  EXPECT_EQ(header->boot_id, pool_->boot_id());
  EXPECT_NE(header->boot_id, boot_before);
}

TEST_F(TakeOverTest, WhatIsNeverTakenGoesBackToThePool) {
  BeginCold();
  (void)PutMany(kA, 7, "a");
  ASSERT_TRUE(HandOver().ok());
  ASSERT_EQ(BeginNext(), OkStatus());
  EXPECT_GT(taken_->bytes(), 0u);
  EXPECT_GE(pool_->stats().bytes_in_use, taken_->bytes());
  taken_->Drop(pool_.get());
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

}  // namespace
}  // namespace ems::server
