#pragma once
// A server's memory in one life and the next one, without the server: what the tests of both sides
// of a restart in place have in common.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mp_server/restart/hand_over.h"
#include "mp_server/restart/take_over.h"
#include "tests/mp_server/restart/kept_fds.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {

class RestartFixture : public ::testing::Test {
 protected:
  static constexpr NamespaceRef kA{NamespaceId(1), 71};
  static constexpr NamespaceRef kB{NamespaceId(2), 72};

  ~RestartFixture() override { End(); }

  static NamespaceTable Table(std::vector<NamespaceRef> refs) {
    NamespaceTable table;
    table.version = 1;
    for (const NamespaceRef ref : refs) {
      NamespaceInfo info;
      info.ref = ref;
      info.name = "ns" + std::to_string(ref.id.value());
      table.by_id[ref.id] = info;
    }
    return table;
  }
  // Of a view in which all slots are this server's since epoch 3.
  static ssd::SlotGrant Grant(uint64_t epoch) {
    ssd::SlotGrant grant;
    grant.view = ViewVersion(1, epoch);
    grant.owned.set();
    grant.history = 9;
    grant.since.assign(kSlotCount, 3);
    return grant;
  }

  void Begin(uint64_t pool_bytes, uint64_t adopted_bytes = 0, uint32_t first_id = 1) {
    SegmentPool::Options options = SmallPool(pool_bytes);
    options.adopted_bytes = adopted_bytes;
    options.first_id = first_id;
    options.create = [](uint64_t bytes, HugePages huge_pages) {
      return fabric::ShmSegment::CreateOn({}, bytes, huge_pages, fabric::Writers::kSuccessor);
    };
    pool_ = std::make_unique<SegmentPool>(options);
    ObjectStore::Options store;
    store.pool = pool_.get();
    store_ = std::make_unique<ObjectStore>(store);
  }
  // The first life.
  void BeginCold(uint64_t pool_bytes = 16 * kMiB) {
    Begin(pool_bytes);
    store_->SetNamespaces(Table({kA, kB}), 1);
    store_->SetOwnedSlots(AllSlots());
    ASSERT_TRUE(pool_->WaitReady(pool_bytes, Soon()).ok());
  }
  void End() {
    if (taken_ != nullptr) taken_->Drop(pool_.get());
    taken_.reset();
    store_.reset();
    pool_.reset();
  }

  Status Put(NamespaceRef ns, const std::string& key, uint64_t bytes, uint16_t slot = 7) {
    EMS_ASSIGN_OR_RETURN(Reservation room, store_->Reserve(ns, SlotId(slot), key, bytes));
    Fill(room, testing::MakeValue("kv", key, 1, bytes));
    const uint64_t checksum = CombinePieces(room.piece_sums());
    bool stored = false;
    return ObjectStore::Publish(std::move(room), checksum, {}, &stored);
  }
  // Puts `count` values of many sizes; what was put, by key.
  std::map<std::string, uint64_t> PutMany(NamespaceRef ns, int count, const std::string& prefix) {
    std::map<std::string, uint64_t> put;
    for (int i = 0; i < count; ++i) {
      constexpr uint64_t kBytes[] = {8, 100, 1000, 5000, 20'000, 70'000, 300'000};
      const std::string key = prefix + std::to_string(i);
      EXPECT_EQ(Put(ns, key, kBytes[i % 7]), OkStatus()) << key;
      put[key] = kBytes[i % 7];
    }
    return put;
  }
  std::string Read(NamespaceRef ns, const std::string& key) {
    const ObjectPin pin = store_->Get(ns, key, false);
    return pin ? std::string(AsText(pin.value())) : "(miss)";
  }
  void ExpectAll(NamespaceRef ns, const std::map<std::string, uint64_t>& put) {
    for (const auto& [key, bytes] : put)
      EXPECT_EQ(Read(ns, key), testing::MakeValue("kv", key, 1, bytes)) << key;
  }

  HandOverHead Head() const {
    HandOverHead head;
    head.number = 21;
    head.folder_id = 22;
    head.cluster = 23;
    head.lineage = 24;
    head.view = ViewVersion(1, 5).packed();
    head.history = 9;
    head.highest_view = ViewVersion(1, 5).packed();
    head.highest_fingerprint = 25;
    head.pool_boot_id = pool_->boot_id();
    return head;
  }
  static TakeOver::Expected Expected() {
    TakeOver::Expected expected;
    expected.number = 21;
    expected.folder_id = 22;
    expected.cluster = ClusterId(23);
    expected.highest = {ViewVersion(1, 5), 25};
    return expected;
  }
  Result<HandedOver> HandOver() {
    ShutSharing(*store_);
    KeptFdStore store(&kept_);
    Result<HandedOver> sealed = Seal(*store_, Head(), &store);
    End();
    return sealed;
  }
  // The next life, up to the view.
  Status BeginNext(const TakeOver::Expected& expected = Expected(),
                   uint64_t pool_bytes = 16 * kMiB) {
    auto begun = TakeOver::Begin(std::exchange(kept_.fds, {}), expected);
    if (!begun.ok()) return begun.status();
    taken_ = *std::move(begun);
    Begin(pool_bytes, taken_->bytes(), taken_->next_segment_id());
    return OkStatus();
  }
  TakeOver::Taken Adopt(const ssd::SlotGrant& grant, const NamespaceTable& table) {
    taken_->Expect(grant);
    const TakeOver::Taken taken = taken_->Adopt(table, store_.get(), pool_.get());
    store_->SetNamespaces(table, 1);
    store_->SetOwnedSlots(grant.owned);
    return taken;
  }

  KeptFds kept_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<TakeOver> taken_;
};

}  // namespace ems::server
