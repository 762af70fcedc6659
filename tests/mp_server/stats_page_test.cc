// What must hold: the page says what the parts of the server say, with an SSD tier and without.
#include "mp_server/stats_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/version.h"
#include "mp_server/store/namespace_store.h"
#include "tests/mp_server/store/memory_fixture.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

class StatsPageTest : public SmallTierTest {
 protected:
  StatsPageTest() : SmallTierTest("stats_page") {
    store_->SetOwnedSlots({{1, 1}, AllSlots()});
    Reservation room = *Objects().Reserve(SlotId(1), "key", 5);
    Fill(room, "value");
    bool stored = false;
    const uint64_t checksum = CombinePieces(room.piece_sums());
    EXPECT_EQ(ObjectStore::Publish(std::move(room), checksum, {}, &stored), OkStatus());
  }
  StatsPage Page(const ssd::SsdTier* ssd) {
    return {"a", 0xabc, pool_.get(), dram_.get(), ssd, &ownership_, &metrics_};
  }
  nlohmann::json Json(const ssd::SsdTier* ssd) {
    return nlohmann::json::parse(Page(ssd).Json(), nullptr, false);
  }

  ManualClock clock_;
  Ownership ownership_{&clock_};
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
};

TEST_F(StatsPageTest, SaysWhoTheServerIsAndWhatItMayAnswerFor) {
  ownership_.SetSelf(NodeId(1));
  ownership_.SetActive(1000);  // nobody else has the slots
  NodeInfo self;
  self.id = NodeId(1);
  SlotTable slots;
  slots.set_owner(SlotId(9), self.id);
  ownership_.Install(**DhtView::Make({7, 8}, {self}, slots, false));
  nlohmann::json json = Json(nullptr);
  EXPECT_EQ(json["name"], "a");
  EXPECT_EQ(json["boot_id"], "0000000000000abc");
  EXPECT_EQ(json["version"], Version());
  EXPECT_GT(json["unix_ms"], 1'700'000'000'000);
  EXPECT_EQ(json["view"]["term"], 7);
  EXPECT_EQ(json["view"]["epoch"], 8);
  EXPECT_EQ(json["owned_slots"], 1);
  EXPECT_EQ(json["lease_valid"], false);
  ownership_.RenewLease(clock_.Now() + std::chrono::seconds(1));
  EXPECT_EQ(Json(nullptr)["lease_valid"], true);
}

TEST_F(StatsPageTest, CountsObjectsMemoryAndHits) {
  metrics_.lookups().For("kv").Add(LookupPath::kSocket,
                                   {.hits = 1, .misses = 2, .bytes = 5, .found = 9});
  metrics_.lookups().For("kv").Add(LookupPath::kOneSided, {.hits = 30, .misses = 10});
  metrics_.lookups().For("other").Add(LookupPath::kOneSided, {.misses = 7});
  metrics_.OnRead(5, true);
  metrics_.OnAnswer(wire::Op::kMultiPutStaged, wire::WireStatus::kOk, 2);
  metrics_.OnStored(7);
  const nlohmann::json json = Json(nullptr);
  EXPECT_EQ(json["gets"], 50) << "also those that clients read themselves";
  EXPECT_EQ(json["hits"], 31);
  EXPECT_EQ(json["one_sided_gets"], 47);
  EXPECT_EQ(json["one_sided_hits"], 30);
  EXPECT_EQ(json["ssd_hits"], 1);
  EXPECT_EQ(json["puts"], 2);
  EXPECT_EQ(json["read_bytes"], 5);
  EXPECT_EQ(json["stored_bytes"], 7);
  EXPECT_EQ(json["pool"]["bytes_max"], 16 * kMiB);
  ASSERT_EQ(json["namespaces"].size(), 1u);
  EXPECT_EQ(json["namespaces"][0]["name"], "kv");
  EXPECT_EQ(json["namespaces"][0]["generation"], 3);
  EXPECT_EQ(json["namespaces"][0]["objects"], 1);
  EXPECT_EQ(json["namespaces"][0]["gets"], 43);
  EXPECT_EQ(json["namespaces"][0]["hits"], 31);
  EXPECT_EQ(json["namespaces"][0]["value_bytes"], 5);
  EXPECT_FALSE(json.contains("ssd"));
}

TEST_F(StatsPageTest, TheSsdTierHasAPartOfItsOwn) {
  const nlohmann::json json = Json(tier_.get());
  EXPECT_EQ(json["ssd"]["state"], "ok");
  EXPECT_EQ(json["ssd"]["capacity_bytes"], 64 * kMiB);
  EXPECT_EQ(json["ssd"]["objects"], 0);
}

TEST_F(StatsPageTest, UsageIsThatOfBothTiers) {
  const NodeUsage alone = Page(nullptr).Usage();
  EXPECT_EQ(alone.dram_total_bytes, 16 * kMiB);
  EXPECT_EQ(alone.dram_used_bytes, 5u);
  EXPECT_EQ(alone.objects, 1u);
  EXPECT_EQ(alone.ssd_state, SsdState::kNone);
  const NodeUsage both = Page(tier_.get()).Usage();
  EXPECT_EQ(both.ssd_total_bytes, 64 * kMiB);
  EXPECT_EQ(both.ssd_state, SsdState::kOk);
}

TEST_F(StatsPageTest, UsageCountsWhatWasLookedForAndFound) {
  metrics_.lookups().For("kv").Add(LookupPath::kSocket, {.hits = 1, .misses = 2});
  metrics_.lookups().For("other").Add(LookupPath::kOneSided, {.hits = 30, .misses = 10});
  const NodeUsage usage = Page(nullptr).Usage();
  EXPECT_EQ(usage.gets, 43u) << "also those that clients read themselves";
  EXPECT_EQ(usage.hits, 31u);
}

TEST_F(StatsPageTest, UsageHasTheCurvesOfNamespacesThatWereAskedAnything) {
  EXPECT_TRUE(Page(nullptr).Usage().curves.empty());
  const NamespaceUsage kv = dram_->Usage().front();
  dram_->Open(kv.ref)->objects().sampler().Count(8, 6);
  const NodeUsage usage = Page(nullptr).Usage();
  ASSERT_EQ(usage.curves.size(), 1u);
  EXPECT_EQ(usage.curves[0].ref, kv.ref);
  EXPECT_EQ(usage.curves[0].lookups, 8u);
  EXPECT_EQ(usage.curves[0].hits, 6u);
  EXPECT_FALSE(usage.curves[0].enough);
  const nlohmann::json curve = Json(nullptr)["namespaces"][0]["curve"];
  EXPECT_EQ(curve["lookups"], 8);
  EXPECT_EQ(curve["estimates"], nullptr);
}

}  // namespace
}  // namespace ems::server
