#include "bench/trace/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr double kHitDeltaPointsMax = 0.5;
// Slots are dealt out evenly, so what is left is how keys fall into them: three standard deviations
// of kPlacementKeysMax keys are 1.8 % on three servers and 3.6 % on ten.
constexpr double kPlacementPercentMax = 4;

// Of a figure that is a percentage already.
std::string RateText(double percent) { return Fixed(percent, 2) + " %"; }

std::string RateTable(const ReplayTotals& totals) {
  Table table({{"hit rate", Align::kLeft}, {"EMS, at lookup"}, {"EMS, loaded"}, {"ideal LRU"}});
  table.AddRow({"blocks", RateText(totals.HitPercent()), RateText(totals.ArrivedPercent()),
                RateText(totals.IdealPercent())});
  table.AddRow({"tokens", RateText(totals.HitTokenPercent()),
                RateText(totals.ArrivedTokenPercent()), RateText(totals.IdealTokenPercent())});
  return table.Render();
}

double SsdPercent(const TraceFigures& figures) {
  return 100 * Share(figures.ssd_hits, figures.replay.totals.blocks);
}

std::string TierLine(const TraceFigures& figures) {
  if (figures.ssd_hits == 0) return "";
  const double loaded = figures.replay.totals.ArrivedPercent();
  return fmt::format("loaded from DRAM: {}, from the SSD: {} of the blocks\n",
                     RateText(loaded - SsdPercent(figures)), RateText(SsdPercent(figures)));
}

std::string CallTable(const ReplayResult& replay) {
  FigureTable table;
  const auto row = [&](const char* name, const LatencyRecorder& calls, uint64_t bytes,
                       Duration time) {
    table.AddRow();
    table.Label("calls", "", name);
    table.Count("count", "", calls.count());
    table.Cell("avg ms", FormatMs(calls.avg_ms()));
    table.Cell("p50 ms", FormatMs(calls.p50_ms()));
    table.Cell("p99 ms", FormatMs(calls.p99_ms()));
    table.Cell("max ms", FormatMs(calls.max_ms()));
    table.Cell("bytes", bytes == 0 ? "-" : FormatBytes(bytes));
    table.Cell("GB/s", FixedAboveZero(GbPerSecond(bytes, time), 3));
  };
  const ReplayTotals& totals = replay.totals;
  row("Lookup", replay.latencies.lookup, 0, {});
  row("Load", replay.latencies.load, totals.loaded_bytes, totals.load_time);
  row("Save", replay.latencies.save, totals.saved_bytes, totals.save_time);
  return table.Render();
}

std::string TtftTable(const TraceFigures& figures) {
  const ReplayLatencies& latencies = figures.replay.latencies;
  const ReplayTotals& totals = figures.replay.totals;

  Table table({{"modelled TTFT", Align::kLeft}, {"mean ms"}, {"p50 ms"}, {"p99 ms"}});
  const auto row = [&](const char* name, const LatencyRecorder& ttft) {
    table.AddRow({name, FormatMs(ttft.avg_ms()), FormatMs(ttft.p50_ms()), FormatMs(ttft.p99_ms())});
  };
  row("with EMS", latencies.ttft_cached);
  row("without", latencies.ttft_uncached);
  const TtftModel& model = figures.settings.ttft;
  return table.Render() +
         fmt::format(
             "{}\nTTFT = measured look-up{} + missed tokens; no queueing\n", model.Text(),
             totals.loaded_bytes == 0
                 ? ""
                 : fmt::format(" + KV of the hits, {} a block, at the {} of these loads of {}",
                               FormatBytes(kTraceBlockTokens * model.kv_bytes_per_token),
                               FormatGbps(GbPerSecond(totals.loaded_bytes, totals.load_time)),
                               FormatBytes(figures.settings.block_bytes)));
}

FigureTable ServerTable(const std::vector<ServerBytes>& servers) {
  FigureTable table;
  for (const ServerBytes& server : servers) {
    table.AddRow();
    table.Label("server", "name", server.name);
    table.Field("live", server.live);
    table.Field("bytes", server.bytes);
    table.Cell("bytes", server.live ? FormatBytes(server.bytes) : "-");
    table.Label(" ", "", server.live ? "" : "down");
  }
  return table;
}

FigureTable PlacementTable(const std::vector<PlacedBytes>& servers) {
  FigureTable table;
  for (const PlacedBytes& server : servers) {
    table.AddRow();
    table.Label("placement without a quota", "name", server.name);
    table.Figure("capacity", "capacity_bytes", server.capacity_bytes,
                 FormatBytes(server.capacity_bytes));
    table.Figure("bytes", "bytes", server.bytes, FormatBytes(server.bytes));
  }
  return table;
}

std::string Outcome(const TraceFigures& figures) {
  const ReplayTotals& totals = figures.replay.totals;
  std::string text = fmt::format(
      "{} requests, {} block references in {:.1f} s\n"
      "wrong bytes: {}{}\n"
      "slowest call: {}, {} ms of {} ms; calls above their deadline (+ {} ms grace): {} of {}\n",
      totals.requests, totals.blocks, Seconds(totals.elapsed), totals.wrong_bytes,
      figures.settings.verify ? "" : " (verification is OFF)", totals.slowest.operation,
      FormatMs(Millis(totals.slowest.took)), FormatMs(Millis(totals.slowest.deadline)),
      fmt::format("{:g}", Millis(kDeadlineGrace)), totals.late_calls, totals.calls);
  if (figures.settings.speedup > 0)
    text += fmt::format("most behind the trace's times: {:.3f} s\n", Seconds(totals.lag_max));
  if (totals.errors.empty()) return text + "no errors\n";
  text += "errors, blocks by call and code (each was treated as a miss):\n";
  for (const auto& [kind, count] : totals.errors) text += fmt::format("  {}: {}\n", kind, count);
  return text;
}

Json RateJson(const ReplayTotals& totals) {
  return {{"lookup_blocks_percent", totals.HitPercent()},
          {"lookup_tokens_percent", totals.HitTokenPercent()},
          {"loaded_blocks_percent", totals.ArrivedPercent()},
          {"loaded_tokens_percent", totals.ArrivedTokenPercent()},
          {"ideal_lru_blocks_percent", totals.IdealPercent()},
          {"ideal_lru_tokens_percent", totals.IdealTokenPercent()},
          {"delta_points", totals.DeltaPoints()}};
}

void WriteJson(const TraceFigures& figures, Json* json) {
  const ReplayTotals& totals = figures.replay.totals;
  const ReplayLatencies& latencies = figures.replay.latencies;
  Json& out = *json;
  out["settings"] = {{"block_bytes", figures.settings.block_bytes},
                     {"capacity_bytes", figures.capacity_bytes},
                     {"concurrency", figures.settings.concurrency},
                     {"speedup", figures.settings.speedup},
                     {"prefill_tokens_per_s", figures.settings.ttft.prefill_tokens_per_s},
                     {"kv_bytes_per_token", figures.settings.ttft.kv_bytes_per_token},
                     {"verify", figures.settings.verify}};
  out["requests"] = totals.requests;
  out["block_references"] = totals.blocks;
  out["unique_blocks"] = figures.trace->unique_blocks;
  out["input_tokens"] = totals.tokens;
  out["elapsed_s"] = Seconds(totals.elapsed);
  out["hit_rate"] = RateJson(totals);
  out["hit_rate"]["ssd_blocks_percent"] = SsdPercent(figures);
  out["wrong_bytes"] = totals.wrong_bytes;
  out["wrong_blocks"] = totals.wrong_blocks;
  out["loaded_bytes"] = totals.loaded_bytes;
  out["saved_bytes"] = totals.saved_bytes;
  out["load_gb_per_second"] = GbPerSecond(totals.loaded_bytes, totals.load_time);
  out["save_gb_per_second"] = GbPerSecond(totals.saved_bytes, totals.save_time);
  out["lookup"] = LatencyJson(latencies.lookup);
  out["load"] = LatencyJson(latencies.load);
  out["save"] = LatencyJson(latencies.save);
  out["ttft_modelled"] = {{"model", figures.settings.ttft.Text()},
                          {"with_ems", LatencyJson(latencies.ttft_cached)},
                          {"without", LatencyJson(latencies.ttft_uncached)}};
  out["slowest_call"] = {{"operation", totals.slowest.operation},
                         {"took_ms", Millis(totals.slowest.took)},
                         {"deadline_ms", Millis(totals.slowest.deadline)}};
  out["calls"] = totals.calls;
  out["calls_above_deadline"] = totals.late_calls;
  out["errors"] = totals.errors;
}

// A block that was evicted between look-up and load is a miss, not a failure.
constexpr const char* kEvicted = "load NOT_FOUND";
// A block is larger than what its server may hold of the namespace.
constexpr const char* kTooLarge = "save OUT_OF_RANGE";

void FailOnErrors(const ReplayTotals& totals, Report* report) {
  for (const auto& [kind, blocks] : totals.errors) {
    if (kind == kEvicted) continue;
    report->Fail(fmt::format(
        "{}: {} block{}{}", kind, blocks, Plural(blocks),
        kind == kTooLarge ? "; raise the capacity: each server has its part of it, which has to "
                            "hold a block at least"
                          : ""));
  }
}

void Judge(const TraceFigures& figures, const TraceExpectations& expect, Report* report) {
  const ReplayTotals& totals = figures.replay.totals;
  if (totals.wrong_bytes > 0)
    report->Fail(fmt::format("{} bytes of {} blocks came back wrong; a cache must never do this",
                             totals.wrong_bytes, totals.wrong_blocks));
  if (!expect.errors) FailOnErrors(totals, report);
  if (totals.interrupted)
    report->Fail(fmt::format("interrupted after {} requests", totals.requests));
  if (expect.hit_rate_percent)
    report->Expect("hit_rate_percent", totals.ArrivedPercent(), GateOp::kAtLeast,
                   *expect.hit_rate_percent);
  if (expect.hit_delta_points)
    report->Expect("hit_rate_delta_points", totals.DeltaPoints(), GateOp::kAtMost,
                   *expect.hit_delta_points);
  const double wrong = figures.settings.verify ? static_cast<double>(totals.wrong_bytes)
                                               : std::nan("");  // not known is not a pass
  report->AtMost(kExact, "hit_rate_vs_ideal_lru_points", totals.DeltaPoints(), kHitDeltaPointsMax);
  report->AtMost(kExact, "wrong_bytes", wrong, 0);
  report->AtMost(kExact, "placement_above_share_percent", AboveSharePercent(figures.placement),
                 kPlacementPercentMax);
  report->AtMost(kTimed, "calls_above_deadline", totals.late_calls, 0);
}

}  // namespace

std::string MarkTitle() {
  return "  done  requests  blocks hit   ideal LRU  tokens hit   ideal LRU      loaded       "
         "saved\n";
}

std::string MarkLine(const ReplayTotals& totals, uint64_t requests_in_all) {
  const double done = 100.0 * static_cast<double>(totals.requests) /
                      static_cast<double>(std::max<uint64_t>(requests_in_all, 1));
  return fmt::format("{:4.0f} %  {:>8}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}\n", done,
                     totals.requests, RateText(totals.HitPercent()),
                     RateText(totals.IdealPercent()), RateText(totals.HitTokenPercent()),
                     RateText(totals.IdealTokenPercent()), FormatBytes(totals.loaded_bytes),
                     FormatBytes(totals.saved_bytes));
}

void ReportTrace(const TraceFigures& figures, const TraceExpectations& expect, Report* report) {
  report->Print("\n" + Outcome(figures));
  report->Print("\n" + RateTable(figures.replay.totals) + TierLine(figures));
  report->Print("\n" + CallTable(figures.replay));
  report->Print("\n" + TtftTable(figures));
  const FigureTable servers = ServerTable(figures.servers);
  report->Print("\n" + servers.Render() + "\n");
  WriteJson(figures, &report->json());
  report->json()["servers"] = servers.json();
  if (!figures.placement.empty()) {
    const FigureTable placement = PlacementTable(figures.placement);
    report->json()["placement"] = placement.json();
    report->Print(placement.Render() + fmt::format("most above a share by capacity: {:.2f} %\n\n",
                                                   AboveSharePercent(figures.placement)));
  }
  Judge(figures, expect, report);
}

}  // namespace ems::bench
