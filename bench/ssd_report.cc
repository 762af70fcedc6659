#include "bench/ssd_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Table;

constexpr double kVsFio = 0.80;
constexpr double kWriteAmplification = 1.15;
constexpr double kDiskShare = 1;
constexpr double kSmallRestartSeconds = 10, kLargeRestartSeconds = 2;
constexpr double kSmallReadySeconds = 10, kLargeReadySeconds = 4;
constexpr double kFreshPutP99Ratio = 2;
constexpr uint64_t kSmallMost = 64 * kKiB;

double ShareOf(const SsdLane& lane) {
  return lane.capacity_bytes == 0
             ? 0
             : static_cast<double>(lane.disk_bytes_max) / static_cast<double>(lane.capacity_bytes);
}

std::string Number(const std::vector<SsdFigures>& rounds, SsdLane::Figure figure, int decimals) {
  return rounds.empty() ? "-" : fmt::format("{:.{}f}", SsdLane::MedianOf(rounds, figure), decimals);
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
  if (!results.lanes.empty()) {
    std::vector<terminal::Column> columns = {{"lane", terminal::Align::kLeft}};
    for (const char* title :
         {"EMS GB/s", "fio GB/s", "vs fio", "EMS CPU s/GB", "fio", "EMS p50 us", "fio",
          "EMS p99 us", "fio", "written/value", "most on disk", "evicted"})
      columns.push_back({title});
    Table table(columns);
    for (const SsdLane& lane : results.lanes) {
      const double ratio = lane.vs_fio();
      std::vector<std::string> row = {lane.name,
                                      Number(lane.ems, &SsdFigures::gb_per_second, 3),
                                      Number(lane.fio, &SsdFigures::gb_per_second, 3),
                                      std::isnan(ratio) ? "-" : fmt::format("{:.3f}", ratio),
                                      Number(lane.ems, &SsdFigures::cpu_per_gb, 3),
                                      Number(lane.fio, &SsdFigures::cpu_per_gb, 3)};
      if (lane.write) {
        row.insert(row.end(), {"", "", "", "", fmt::format("{:.4f}", lane.write_amplification),
                               fmt::format("{:.1f} %", 100 * ShareOf(lane)),
                               fmt::format("{}", lane.evicted_objects)});
      } else {
        row.insert(
            row.end(),
            {Number(lane.ems, &SsdFigures::p50_us, 0), Number(lane.fio, &SsdFigures::p50_us, 0),
             Number(lane.ems, &SsdFigures::p99_us, 0), Number(lane.fio, &SsdFigures::p99_us, 0)});
      }
      table.AddRow(row);
    }
    text += fmt::format("\n{}\n", table.Render());
  }
  for (const SsdRestart& restart : results.restarts)
    text +=
        fmt::format("{}: {} objects of {} are back after {:.3f} s\n", restart.name, restart.objects,
                    FormatBytes(restart.value_bytes), restart.median_seconds());
  if (results.lanes.empty() && results.restarts.empty()) return text;
  text += fmt::format("tier: {}, {}; fio: {}\n", results.io_engine,
                      results.direct_io ? "direct I/O" : "NO direct I/O in this folder",
                      results.fio_missing.empty() ? results.fio_engine : results.fio_missing);
  return text;
}

Json SsdJson(const SsdResults& results) {
  Json lanes = Json::array();
  for (const SsdLane& lane : results.lanes) {
    Json one = {
        {"name", lane.name}, {"ems", FiguresJson(lane.ems)}, {"fio", FiguresJson(lane.fio)}};
    if (const double ratio = lane.vs_fio(); !std::isnan(ratio)) one["vs_fio"] = ratio;
    if (lane.write) {
      one["write_amplification"] = lane.write_amplification;
      one["disk_bytes_max"] = lane.disk_bytes_max;
      one["capacity_bytes"] = lane.capacity_bytes;
      one["evicted_objects"] = lane.evicted_objects;
    }
    lanes.push_back(std::move(one));
  }
  Json restarts = Json::array();
  for (const SsdRestart& restart : results.restarts)
    restarts.push_back({{"name", restart.name},
                        {"objects", restart.objects},
                        {"value_bytes", restart.value_bytes},
                        {"seconds", restart.seconds}});
  return {{"lanes", lanes},
          {"restarts", restarts},
          {"io_engine", results.io_engine},
          {"direct_io", results.direct_io},
          {"fio_engine", results.fio_engine},
          {"fio_missing", results.fio_missing}};
}

void JudgeSsd(const SsdResults& results, Report* report) {
  double amplification = 0, share = 0;
  bool wrote = false;
  if (report->Wants(GateKind::kTimed) && !results.fio_missing.empty() && !results.lanes.empty())
    report->Fail("gates beside fio: " + results.fio_missing);
  for (const SsdLane& lane : results.lanes) {
    report->Gate(GateKind::kTimed, lane.name + "_vs_fio", lane.vs_fio(), GateOp::kAtLeast, kVsFio);
    if (!lane.write) continue;
    wrote = true;
    amplification = std::max(amplification, lane.write_amplification);
    share = std::max(share, ShareOf(lane));
  }
  if (wrote) {
    report->Gate(GateKind::kExact, "write_amplification", amplification, GateOp::kAtMost,
                 kWriteAmplification);
    report->Gate(GateKind::kExact, "disk_bytes_max_vs_capacity", share, GateOp::kAtMost,
                 kDiskShare);
  }
  for (const SsdRestart& restart : results.restarts)
    report->Gate(GateKind::kTimed, restart.name + "_seconds", restart.median_seconds(),
                 GateOp::kAtMost,
                 restart.value_bytes < kSmallMost ? kSmallRestartSeconds : kLargeRestartSeconds);
}

std::string RenderSsdServers(const SsdServerResults& results) {
  std::string text;
  if (!results.puts.empty()) {
    Table table({{"Put", terminal::Align::kLeft},
                 {"calls"},
                 {"p50 us, tier"},
                 {"DRAM alone"},
                 {"p99 us, tier"},
                 {"DRAM alone"},
                 {"p99 ratio"}});
    const auto row = [&](const std::string& name, const LatencyRecorder& tier,
                         const LatencyRecorder& dram, double ratio) {
      const auto us = [](double ms) { return fmt::format("{:.0f}", 1000 * ms); };
      table.AddRow({name, fmt::format("{}", tier.count()), us(tier.p50_ms()), us(dram.p50_ms()),
                    us(tier.p99_ms()), us(dram.p99_ms()), fmt::format("{:.2f}", ratio)});
    };
    for (const TierPuts& puts : results.puts) {
      const std::string size = SizeName(puts.value_bytes);
      row(size + ", new keys", puts.with_tier.fresh, puts.without.fresh, puts.fresh_p99_ratio());
      row(size + ", overwrites", puts.with_tier.overwrite, puts.without.overwrite,
          puts.overwrite_p99_ratio());
    }
    text += fmt::format(
        "\n{}An overwrite waits until the old value's row is gone from the tier's index: after a "
        "restart nothing may bring it back.\n\n",
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
         {"new_p99_ratio", one.fresh_p99_ratio()},
         {"overwrite_p99_ratio", one.overwrite_p99_ratio()}});
  return {{"server_restarts", restarts}, {"puts", puts}};
}

void JudgeSsdServers(const SsdServerResults& results, Report* report) {
  for (const ServerRestart& one : results.restarts) {
    report->Gate(GateKind::kExact, one.name + "_missing", static_cast<double>(one.missing),
                 GateOp::kAtMost, 0);
    report->Gate(GateKind::kExact, one.name + "_wrong", static_cast<double>(one.wrong),
                 GateOp::kAtMost, 0);
    report->Gate(GateKind::kTimed, one.name + "_ready_seconds", one.ready_seconds, GateOp::kAtMost,
                 one.value_bytes < kSmallMost ? kSmallReadySeconds : kLargeReadySeconds);
  }
  for (const TierPuts& one : results.puts)
    report->Gate(GateKind::kTimed, fmt::format("put_new_{}_p99_vs_dram", SizeName(one.value_bytes)),
                 one.fresh_p99_ratio(), GateOp::kAtMost, kFreshPutP99Ratio);
}

}  // namespace ems::bench
