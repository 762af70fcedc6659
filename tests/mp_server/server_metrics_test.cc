// What must hold: each verb moves its metric, gauges show the store and the lease, and no label has
// more values than it should.
#include "mp_server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace ems::server {
namespace {

using ::testing::HasSubstr;
using wire::Op;
using wire::WireStatus;

TEST(ServerMetricsTest, VerbsMoveTheirMetrics) {
  MetricsRegistry registry;
  const ServerMetrics metrics(&registry);
  metrics.OnAnswer(Op::kGet, WireStatus::kMiss);
  metrics.OnAnswer(Op::kGet, WireStatus::kMiss);
  metrics.OnAnswer(Op::kMultiGetRange, WireStatus::kNotDurable);  // the last op, the last status
  metrics.OnRead(100, false);
  metrics.OnStored(200);
  metrics.OnDeduplicated(300);
  metrics.OnHeartbeat(true);
  metrics.OnHeartbeat(false);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_server_read_bytes_total 100"));
  EXPECT_THAT(text, HasSubstr("ems_server_stored_bytes_total 200"));
  EXPECT_THAT(text, HasSubstr("ems_server_deduplicated_bytes_total 300"));
  EXPECT_THAT(text, HasSubstr("ems_server_heartbeats_total{result=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("ems_server_heartbeats_total{result=\"failed\"} 1"));
  EXPECT_THAT(text, ::testing::ContainsRegex("ems_server_answers_total\\{[^}]*[Gg]et[^}]*\\} 2"));
}

TEST(ServerMetricsTest, WhatAnAlarmIsOnBeginsAtZero) {
  MetricsRegistry registry;
  const ServerMetrics metrics(&registry);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_server_answers_total{op=\"Put\",status=\"checksum\"} 0\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("status=\"ok\"")));
}

TEST(ServerMetricsTest, RefreshShowsStorePoolAndOwnership) {
  MetricsRegistry registry;
  ServerMetrics metrics(&registry);
  SegmentPool::Options pool_options;
  pool_options.bytes = 4 * kMiB;
  pool_options.segment_bytes = 2 * kMiB;
  pool_options.huge_pages = HugePages::kOff;
  SegmentPool pool(pool_options);
  ASSERT_TRUE(pool.WaitReady(4 * kMiB, Deadline::After(std::chrono::seconds(20))).ok());
  ObjectStore::Options store_options;
  store_options.pool = &pool;
  ObjectStore store(store_options);
  NamespaceTable table;
  table.version = 1;
  NamespaceInfo info;
  info.ref = {NamespaceId(1), 1};
  info.name = "kv";
  info.dram_quota_bytes = kMiB;
  table.by_id[info.ref.id] = info;
  store.SetNamespaces(table, 1.0);
  ManualClock clock;
  Ownership ownership(&clock);
  ownership.SetSelf(NodeId(1));
  ownership.SetActive(1000);  // nobody else has the slots
  SlotTable slots;
  for (uint16_t s = 0; s < 100; ++s) slots.set_owner(SlotId(s), NodeId(1));
  NodeInfo self;
  self.id = NodeId(1);
  ownership.Install(**DhtView::Make({7, 9}, {self}, slots, false));
  metrics.Refresh(store, &pool, ownership);
  std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("ems_server_view_term 7"));
  EXPECT_THAT(text, HasSubstr("ems_server_view_epoch 9"));
  EXPECT_THAT(text, HasSubstr("ems_server_owned_slots 100"));
  EXPECT_THAT(text, HasSubstr("ems_server_lease_valid 0"));
  EXPECT_THAT(text, HasSubstr("ems_server_pool_bytes 4194304"));
  EXPECT_THAT(text, HasSubstr("ems_server_quota_bytes{namespace=\"kv\"} 1048576"));
  EXPECT_THAT(text, HasSubstr("ems_server_objects{namespace=\"kv\"} 0"));
  EXPECT_THAT(text, HasSubstr("ems_server_damaged_objects_total{namespace=\"kv\"} 0"));
  ownership.RenewLease(clock.Now() + std::chrono::seconds(1));
  metrics.Refresh(store, &pool, ownership);
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_lease_valid 1"));

  store.SetNamespaces(NamespaceTable{.version = 2, .by_id = {}}, 1.0);
  metrics.Refresh(store, &pool, ownership);
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_quota_bytes{namespace=\"kv\"} 0"))
      << "one that is deleted has nothing";
}

TEST(ServerMetricsTest, TheSsdTierIsShownFromTheStartOn) {
  MetricsRegistry registry;
  const ServerMetrics metrics(&registry);
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_ssd_state 0"));
  ssd::TierStats stats;
  stats.state = ssd::TierState::kDegraded;
  stats.free_bytes = 4096;
  stats.writer.written_objects = 17;
  metrics.Refresh(stats);
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_ssd_state 2"));
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_ssd_free_bytes 4096"));
  EXPECT_THAT(registry.Render(), HasSubstr("ems_server_ssd_written_objects_total 17"));
}

TEST(ServerMetricsTest, TheTableNamesEachMetricAndCountersEndInTotal) {
  const std::string table = ServerMetrics::Table();
  for (const char* entry :
       {"ems_build_info{version,commit} gauge\n", "ems_server_answers_total{op,status} counter\n",
        "ems_server_evicted_bytes_total{namespace} counter\n",
        "ems_server_lookups_total{namespace,op,path,result} counter\n",
        "ems_server_model_source_bytes_total counter\n", "ems_server_pool_bytes gauge\n",
        "ems_server_request_seconds{op,tier,transport} histogram\n",
        "ems_server_ssd_written_bytes_total counter\n", "process_cpu_seconds_total counter\n"})
    EXPECT_THAT(table, HasSubstr(entry));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(" ")) continue;
    const std::string name = line.substr(0, line.find_first_of("{ "));
    EXPECT_EQ(name.ends_with("_total"), line.ends_with(" counter")) << line;
  }
}

}  // namespace
}  // namespace ems::server
