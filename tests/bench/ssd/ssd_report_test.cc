// What must hold: tables and JSON have every series, each target has its gate, and gates that need
// fio fail without it.
#include "bench/ssd/ssd_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;

SsdFigures Figures(double gb_per_second) {
  SsdFigures figures;
  figures.gb_per_second = gb_per_second;
  figures.p50_us = 100;
  return figures;
}

SsdResults Good() {
  SsdResults results;
  SsdSeries write;
  write.name = "write_1MiB";
  write.ems = {Figures(0.9)};
  write.fio = {Figures(1)};
  write.write_amplification = 1.02;
  write.disk_bytes_max = 90;
  write.capacity_bytes = 100;
  SsdSeries read;
  read.name = "read_1MiB_depth1";
  read.write = false;
  read.ems = {Figures(0.5)};
  read.fio = {Figures(1)};
  results.series = {write, read};
  results.restarts = {{"restart_1M_4KiB", 1'000'000, 4 * kKiB, {3}},
                      {"restart_4GiB_1MiB", 4096, kMiB, {3}}};
  results.io_engine = "io_uring";
  results.fio_engine = "libaio";
  return results;
}

std::string Judged(const SsdResults& results) {
  Report report("ssd", "", GateSet::kAll);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  JudgeSsd(results, &report);
  std::string text = ::testing::internal::GetCapturedStdout();
  return text + ::testing::internal::GetCapturedStderr();
}

TEST(SsdReportTest, AFioThatFailedAndLostObjectsFailRunsWithoutGates) {
  Report fio("ssd", "");
  SsdResults results = Good();
  results.fio_missing = "fio ended with 1";
  JudgeSsd(results, &fio);
  EXPECT_FALSE(fio.failed()) << "it is not installed";
  results.fio_failed = true;
  JudgeSsd(results, &fio);
  EXPECT_TRUE(fio.failed());
  Report lost("ssd", "");
  SsdServerResults servers;
  servers.restarts.emplace_back().missing = 1;
  JudgeSsdServers(servers, &lost);
  EXPECT_TRUE(lost.failed());
}

TEST(SsdReportTest, TableAndJsonHaveEveryLane) {
  const std::string text = RenderSsd(Good());
  for (const char* part : {"write_1MiB", "read_1MiB_depth1", "0.900", "1.0200", "90.0 %",
                           "restart_1M_4KiB", "io_uring", "libaio"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto json = SsdJson(Good());
  EXPECT_EQ(json["lanes"].size(), 2u);
  EXPECT_DOUBLE_EQ(json["lanes"][0]["vs_fio"], 0.9);
  EXPECT_DOUBLE_EQ(json["lanes"][1]["ems"][0]["p50_us"], 100);
  EXPECT_FALSE(json["lanes"][1].contains("write_amplification"));
  EXPECT_EQ(json["restarts"][1]["seconds"][0], 3);
}

TEST(SsdReportTest, EachTargetHasItsGate) {
  const std::string text = Judged(Good());
  EXPECT_THAT(text, HasSubstr("gate write_1MiB_vs_fio 0.9 >= 0.8 pass"));
  EXPECT_THAT(text, HasSubstr("gate read_1MiB_depth1_vs_fio 0.5 >= 0.8 fail"));
  EXPECT_THAT(text, HasSubstr("gate write_amplification 1.02 <= 1.15 pass"));
  EXPECT_THAT(text, HasSubstr("gate disk_bytes_max_vs_capacity 0.9 <= 1 pass"));
  EXPECT_THAT(text, HasSubstr("gate restart_1M_4KiB_seconds 3 <= 10 pass"));
  EXPECT_THAT(text, HasSubstr("gate restart_4GiB_1MiB_seconds 3 <= 2 fail"));
}

// Of a server with a tier that takes `factor` as long.
SsdServerResults GoodServers(int factor) {
  SsdServerResults results;
  results.restarts = {{.name = "server_restart_1M_4KiB",
                       .objects = 1'000'000,
                       .value_bytes = 4 * kKiB,
                       .ready_seconds = 3,
                       .dropped = "that of its files"}};
  TierPuts puts{.value_bytes = 256 * kKiB, .with_tier = {}, .without = {}, .disk_syncs = {}};
  puts.disk_syncs.Record(std::chrono::milliseconds(50));
  for (LatencyRecorder* times :
       {&puts.with_tier.fresh, &puts.with_tier.overwrite, &puts.with_tier.again})
    times->Record(std::chrono::milliseconds(100 * factor));
  for (LatencyRecorder* times : {&puts.without.fresh, &puts.without.overwrite, &puts.without.again})
    times->Record(std::chrono::milliseconds(100));
  results.puts.push_back(std::move(puts));
  return results;
}

std::string Judged(const SsdServerResults& results, GateSet gates) {
  Report report("ssd", "", gates);
  ::testing::internal::CaptureStdout();
  JudgeSsdServers(results, &report);
  return ::testing::internal::GetCapturedStdout();
}

TEST(SsdReportTest, ServersHaveTheirGates) {
  SsdServerResults results = GoodServers(1);
  std::string text = Judged(results, GateSet::kAll);
  EXPECT_THAT(text, HasSubstr("gate server_restart_1M_4KiB_missing 0 <= 0 pass"));
  EXPECT_THAT(text, HasSubstr("gate server_restart_1M_4KiB_ready_seconds 3 <= 10 pass"));
  EXPECT_THAT(text, HasSubstr("gate put_new_256KiB_p99_vs_dram 1 <= 2 pass"));
  EXPECT_THAT(text, HasSubstr("gate put_again_256KiB_p99_vs_dram 1 <= 2 pass"));
  EXPECT_THAT(text, HasSubstr("gate put_overwrite_256KiB_p99_vs_dram_and_sync 0.6667 <= 2 pass"));
  results = GoodServers(3);
  results.restarts[0].missing = 1;
  results.restarts[0].wrong = 2;
  results.restarts[0].ready_seconds = 11;
  text = Judged(results, GateSet::kAll);
  EXPECT_THAT(text, HasSubstr("gate server_restart_1M_4KiB_missing 1 <= 0 fail"));
  EXPECT_THAT(text, HasSubstr("gate server_restart_1M_4KiB_wrong 2 <= 0 fail"));
  EXPECT_THAT(text, HasSubstr("gate server_restart_1M_4KiB_ready_seconds 11 <= 10 fail"));
  EXPECT_THAT(text, ::testing::ContainsRegex("gate put_new_256KiB_p99_vs_dram [23].* <= 2 fail"));
  EXPECT_THAT(text, ::testing::ContainsRegex("gate put_again_256KiB_p99_vs_dram [23].* <= 2 fail"));
  EXPECT_THAT(Judged(results, GateSet::kExact), ::testing::Not(HasSubstr("p99")));
}

TEST(SsdReportTest, ServersAreInTableAndJson) {
  const std::string text = RenderSsdServers(GoodServers(3));
  for (const char* part :
       {"256KiB, new keys", "256KiB, overwrites", "256KiB, again and again",
        "256KiB, the disk's sync alone", "that of its files", "of 1000000 acknowledged objects"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto json = SsdServersJson(GoodServers(1));
  EXPECT_EQ(json["server_restarts"][0]["missing"], 0);
  EXPECT_EQ(json["puts"][0]["new_p99_ratio"], 1);
}

TEST(SsdReportTest, WithoutFioItsGatesFailAndSayWhy) {
  SsdResults results = Good();
  for (SsdSeries& series : results.series) series.fio.clear();
  results.fio_missing = "fio is not installed";
  EXPECT_THAT(RenderSsd(results), HasSubstr("fio is not installed"));
  EXPECT_FALSE(SsdJson(results)["lanes"][0].contains("vs_fio"));
  const std::string text = Judged(results);
  EXPECT_THAT(text, HasSubstr("gates beside fio: fio is not installed"));
  EXPECT_THAT(text, HasSubstr("gate write_1MiB_vs_fio nan >= 0.8 fail"));
  EXPECT_THAT(text, HasSubstr("gate write_amplification 1.02 <= 1.15 pass"));
}

}  // namespace
}  // namespace ems::bench
