#include "bench/ssd/ssd_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kVsFio = 0.80;
constexpr double kDeepReadsVsFio = 0.90;
constexpr uint32_t kDeep = 8;  // and more reads at once
constexpr double kWriteAmplification = 1.15;
constexpr double kDiskShare = 1;
constexpr double kSmallRestartSeconds = 10, kLargeRestartSeconds = 2;
constexpr double kSmallReadySeconds = 10, kLargeReadySeconds = 4;
constexpr double kPutP99Ratio = 2;
constexpr uint64_t kSmallMost = 64 * kKiB;

double ShareOf(const SsdSeries& series) {
  return Share(series.disk_bytes_max, series.capacity_bytes);
}

std::string Number(const std::vector<SsdFigures>& rounds, SsdSeries::Figure figure, int decimals) {
  return rounds.empty() ? "-" : Fixed(SsdSeries::MedianOf(rounds, figure), decimals);
}

Json FiguresJson(const std::vector<SsdFigures>& rounds) {
  Json all = Json::array();
  for (const SsdFigures& round : rounds) {
    Json one = {{"gb_per_second", round.gb_per_second}, {"cpu_seconds_per_gb", round.cpu_per_gb}};
    if (round.p50_us > 0) one["p50_us"] = round.p50_us;
    if (round.p99_us > 0) one["p99_us"] = round.p99_us;
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

std::string RenderSsd(const SsdResults& results) {
  std::string text;
  FigureTable table;
  for (const SsdSeries& series : results.series) {
    const auto both = [&](const char* title, SsdSeries::Figure figure, bool shown, int decimals) {
      table.Cell(std::string("EMS ") + title, shown ? Number(series.ems, figure, decimals) : "");
      table.Cell(figure == &SsdFigures::gb_per_second ? "fio GB/s" : "fio",
                 shown ? Number(series.fio, figure, decimals) : "");
    };
    table.AddRow();
    table.Label("series", "", series.name);
    both("GB/s", &SsdFigures::gb_per_second, true, 3);
    table.Figure("vs fio", "", series.vs_fio(), 3);
    both("CPU s/GB", &SsdFigures::cpu_per_gb, true, 3);
    both("p50 us", &SsdFigures::p50_us, !series.write, 0);
    both("p99 us", &SsdFigures::p99_us, !series.write, 0);
    table.Cell("written/value", series.write ? Fixed(series.write_amplification, 4) : "");
    table.Cell("most on disk", series.write ? PercentText(ShareOf(series)) : "");
    table.Cell("evicted", series.write ? std::to_string(series.evicted_objects) : "");
  }
  if (!table.empty()) text += fmt::format("\n{}\n", table.Render());
  for (const SsdRestart& restart : results.restarts)
    text +=
        fmt::format("{}: {} objects of {} are back after {:.3f} s\n", restart.name, restart.objects,
                    FormatBytes(restart.value_bytes), restart.median_seconds());
  if (results.series.empty() && results.restarts.empty()) return text;
  text += fmt::format("tier: {}, {}; fio: {}\n", results.io_engine,
                      results.direct_io ? "direct I/O" : "NO direct I/O in this folder",
                      results.fio_missing.empty() ? results.fio_engine : results.fio_missing);
  return text;
}

Json SsdJson(const SsdResults& results) {
  Json all = Json::array();
  for (const SsdSeries& series : results.series) {
    Json one = {
        {"name", series.name}, {"ems", FiguresJson(series.ems)}, {"fio", FiguresJson(series.fio)}};
    if (const double ratio = series.vs_fio(); !std::isnan(ratio)) one["vs_fio"] = ratio;
    if (series.write) {
      one["write_amplification"] = series.write_amplification;
      one["disk_bytes_max"] = series.disk_bytes_max;
      one["capacity_bytes"] = series.capacity_bytes;
      one["evicted_objects"] = series.evicted_objects;
    }
    all.push_back(std::move(one));
  }
  Json restarts = Json::array();
  for (const SsdRestart& restart : results.restarts)
    restarts.push_back({{"name", restart.name},
                        {"objects", restart.objects},
                        {"value_bytes", restart.value_bytes},
                        {"seconds", restart.seconds}});
  // "lanes": the key that scripts know.
  return {{"lanes", all},
          {"restarts", restarts},
          {"io_engine", results.io_engine},
          {"direct_io", results.direct_io},
          {"fio_engine", results.fio_engine},
          {"fio_missing", results.fio_missing}};
}

void JudgeSsd(const SsdResults& results, Report* report) {
  double amplification = 0, share = 0;
  bool wrote = false;
  if (report->Wants(GateKind::kTimed) && !results.fio_missing.empty() && !results.series.empty())
    report->Fail("gates beside fio: " + results.fio_missing);
  else if (results.fio_failed)
    report->Fail("fio: " + results.fio_missing);
  for (const SsdSeries& series : results.series) {
    report->AtLeast(kTimed, series.name + "_vs_fio", series.vs_fio(),
                    series.depth >= kDeep ? kDeepReadsVsFio : kVsFio);
    if (!series.write) continue;
    wrote = true;
    amplification = std::max(amplification, series.write_amplification);
    share = std::max(share, ShareOf(series));
  }
  if (wrote) {
    report->AtMost(kExact, "write_amplification", amplification, kWriteAmplification);
    report->AtMost(kExact, "disk_bytes_max_vs_capacity", share, kDiskShare);
  }
  for (const SsdRestart& restart : results.restarts)
    report->AtMost(kTimed, restart.name + "_seconds", restart.median_seconds(),
                   restart.value_bytes < kSmallMost ? kSmallRestartSeconds : kLargeRestartSeconds);
}

std::string RenderSsdServers(const SsdServerResults& results) {
  std::string text;
  if (!results.puts.empty()) {
    FigureTable table;
    const auto row = [&](const std::string& name, const LatencyRecorder& tier,
                         const LatencyRecorder& dram, double ratio) {
      table.AddRow();
      table.Label("Put", "", name);
      table.Count("calls", "", tier.count());
      table.Figure("p50 us, tier", "", 1000 * tier.p50_ms(), 0);
      table.Figure("DRAM alone", "", 1000 * dram.p50_ms(), 0);
      table.Figure("p99 us, tier", "", 1000 * tier.p99_ms(), 0);
      table.Figure("DRAM alone", "", 1000 * dram.p99_ms(), 0);
      table.Figure("p99 ratio", "", ratio, 2);
    };
    const auto sync_row = [&](const std::string& size, const TierPuts& puts) {
      table.AddRow();
      table.Label("Put", "", size + ", the disk's sync alone");
      table.Count("calls", "", puts.disk_syncs.count());
      table.Figure("p50 us, tier", "", 1000 * puts.disk_syncs.p50_ms(), 0);
      table.Cell("DRAM alone", "");
      table.Figure("p99 us, tier", "", 1000 * puts.disk_syncs.p99_ms(), 0);
    };
    for (const TierPuts& puts : results.puts) {
      const std::string size = SizeName(puts.value_bytes);
      row(size + ", new keys", puts.with_tier.fresh, puts.without.fresh, puts.fresh_p99_ratio());
      row(size + ", overwrites", puts.with_tier.overwrite, puts.without.overwrite,
          puts.overwrite_p99_ratio());
      sync_row(size, puts);
      row(size + ", again and again", puts.with_tier.again, puts.without.again,
          puts.again_p99_ratio());
    }
    text += fmt::format(
        "\n{}An overwrite of what is on the SSD waits until the old value's row is gone from the "
        "tier's index: after a restart nothing may bring it back. Of a key that is overwritten "
        "again and again the SSD has nothing: it is written when it is quiet.\n\n",
        table.Render());
  }
  for (const ServerRestart& one : results.restarts)
    text += fmt::format(
        "{}: server start to Ready {:.3f} s, page cache dropped: {}; of {} acknowledged objects of "
        "{} {} were missing, {} wrong\n",
        one.name, one.ready_seconds, one.dropped, one.objects, FormatBytes(one.value_bytes),
        one.missing, one.wrong);
  return text;
}

Json SsdServersJson(const SsdServerResults& results) {
  Json restarts = Json::array(), puts = Json::array();
  for (const ServerRestart& one : results.restarts)
    restarts.push_back({{"name", one.name},
                        {"objects", one.objects},
                        {"value_bytes", one.value_bytes},
                        {"ready_seconds", one.ready_seconds},
                        {"page_cache_dropped", one.dropped},
                        {"read_seconds", one.read_seconds},
                        {"missing", one.missing},
                        {"wrong", one.wrong}});
  for (const TierPuts& one : results.puts)
    puts.push_back(
        {{"value_bytes", one.value_bytes},
         {"new_keys",
          {{"tier", LatencyJson(one.with_tier.fresh)}, {"dram", LatencyJson(one.without.fresh)}}},
         {"overwrites",
          {{"tier", LatencyJson(one.with_tier.overwrite)},
           {"dram", LatencyJson(one.without.overwrite)}}},
         {"overwrites_again",
          {{"tier", LatencyJson(one.with_tier.again)}, {"dram", LatencyJson(one.without.again)}}},
         {"new_p99_ratio", one.fresh_p99_ratio()},
         {"overwrite_p99_ratio", one.overwrite_p99_ratio()},
         {"disk_syncs", LatencyJson(one.disk_syncs)},
         {"overwrite_p99_vs_limit", one.overwrite_p99_vs_limit()},
         {"overwrite_again_p99_ratio", one.again_p99_ratio()}});
  return {{"server_restarts", restarts}, {"puts", puts}};
}

void JudgeSsdServers(const SsdServerResults& results, Report* report) {
  for (const ServerRestart& one : results.restarts) {
    report->MustBeZero(one.name + "_missing", one.missing);
    report->MustBeZero(one.name + "_wrong", one.wrong);
    report->AtMost(kTimed, one.name + "_ready_seconds", one.ready_seconds,
                   one.value_bytes < kSmallMost ? kSmallReadySeconds : kLargeReadySeconds);
  }
  for (const TierPuts& one : results.puts) {
    const std::string size = SizeName(one.value_bytes);
    report->AtMost(kTimed, fmt::format("put_new_{}_p99_vs_dram", size), one.fresh_p99_ratio(),
                   kPutP99Ratio);
    report->AtMost(kTimed, fmt::format("put_overwrite_{}_p99_vs_dram_and_sync", size),
                   one.overwrite_p99_vs_limit(), kPutP99Ratio);
    report->AtMost(kTimed, fmt::format("put_again_{}_p99_vs_dram", size), one.again_p99_ratio(),
                   kPutP99Ratio);
  }
}

}  // namespace ems::bench
