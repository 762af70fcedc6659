#include "bench/elastic/elastic_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "common/bytes.h"
#include "common/check.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

// Of a change that loses nothing, and of one that does from the ideal that loses the same.
constexpr double kPointsMax = 2;
constexpr double kIdealPointsMax = 1;
constexpr double kP99RatioMax = 2;
constexpr double kMovedMax = 1.1;

std::string GateName(const ChangeFigures& figures, const char* what) {
  std::string name = fmt::format("{}_{}", figures.name, what);
  std::ranges::replace(name, ' ', '_');
  return name;
}

Json JsonOf(const ChangeFigures& f) {
  return {{"change", f.name},
          {"at_s", f.at_s},
          {"took_s", f.took_s},
          {"in_view_s", f.in_view_s},
          {"hit_percent", f.hit_percent},
          {"undisturbed_percent", f.undisturbed_percent},
          {"ideal_percent", f.ideal_percent},
          {"ideal_without_loss_percent", f.ideal_whole_percent},
          {"points", f.Points()},
          {"points_from_ideal", f.PointsFromIdeal()},
          {"failed_gets", f.sums.failed_gets},
          {"failed_saves", f.sums.failed_saves},
          {"wrong_bytes", f.sums.wrong_bytes},
          {"get", LatencyJson(f.sums.gets)},
          {"quiet_p50_ms", f.quiet_p50_ms},
          {"quiet_p99_ms", f.quiet_p99_ms},
          {"p99_ratio", f.P99Ratio()},
          {"forwarded_hits", f.forwarded.hits},
          {"forwarded_misses", f.forwarded.misses},
          {"forwards_refused", f.forwarded.refused},
          {"forwards_failed", f.forwarded.failed},
          {"forwarded_bytes", f.forwarded.bytes},
          {"ideal_bytes", f.ideal_bytes},
          {"moved_ratio", f.MovedRatio()}};
}

void AddHitRow(const ChangeFigures& f, FigureTable* table) {
  table->AddRow();
  table->Label("change", "", f.name);
  table->Figure("at s", "", f.at_s, 1);
  table->Figure("in view s", "", f.in_view_s, 1);
  table->Figure("hit %", "", f.hit_percent, 2);
  table->Figure("undisturbed %", "", f.undisturbed_percent, 2);
  table->Figure("ideal %", "", f.ideal_percent, 2);
  table->Figure("points", "", f.Points(), 2);
  table->Figure("from ideal", "", f.PointsFromIdeal(), 2);
  table->Count("failed gets", "", f.sums.failed_gets);
  table->Count("saves", "", f.sums.failed_saves);
  table->Count("wrong bytes", "", f.sums.wrong_bytes);
}

void AddMoveRow(const ChangeFigures& f, FigureTable* table) {
  table->AddRow();
  table->Label("change", "", f.name);
  table->Figure("Get p50 ms", "", f.sums.gets.p50_ms(), 2);
  table->Figure("p99 ms", "", f.sums.gets.p99_ms(), 2);
  table->Figure("p99 ratio", "", f.P99Ratio(), 2);
  table->Count("forwarded", "", f.forwarded.hits);
  table->Count("misses", "", f.forwarded.misses);
  table->Count("refused", "", f.forwarded.refused);
  table->Count("failed", "", f.forwarded.failed);
  table->Cell("moved", FormatBytes(f.forwarded.bytes));
  table->Cell("to move", FormatBytes(static_cast<uint64_t>(f.ideal_bytes)));
  table->Figure("ratio", "", f.MovedRatio(), 2);
}

// Every kind of error of a run, so that a failed gate says what it was.
std::string ErrorLine(const ElasticRun& run) {
  std::string line;
  for (const ReplayTotals* totals : {&run.warm.totals, &run.timed.totals})
    for (const auto& [kind, blocks] : totals->errors)
      line += fmt::format("{}{} × {}", line.empty() ? "" : ", ", kind, blocks);
  return line.empty() ? "" : fmt::format("{}: {}\n", NameOf(run.scenario), line);
}

Json RunJson(const ElasticRun& run, const ElasticSettings& settings) {
  return {{"scenario", NameOf(run.scenario)},
          {"hit_percent", HitPercentBySecond(run.timed.requests, settings.rate)},
          {"warm_hit_percent", run.warm.totals.ArrivedPercent()},
          {"lag_max_s", Seconds(run.timed.totals.lag_max)},
          {"errors", run.timed.totals.errors}};
}

}  // namespace

double ChangeFigures::P99Ratio() const {
  return quiet_p99_ms > 0 ? sums.gets.p99_ms() / quiet_p99_ms : std::nan("");
}

double ChangeFigures::MovedRatio() const {
  return ideal_bytes > 0 ? static_cast<double>(forwarded.bytes) / ideal_bytes : std::nan("");
}

ChangeFigures FiguresOf(const Change& change, const ElasticRun& run, const ElasticRun& undisturbed,
                        const Trace& trace, const ElasticSettings& settings) {
  ChangeFigures f;
  f.name = change.name;
  f.at_s = Seconds(change.at);
  f.took_s = Seconds(change.took);
  f.in_view_s = change.in_view < Duration::zero() ? std::nan("") : Seconds(change.in_view);
  f.lost = !change.comes;
  f.killed = change.killed;
  f.sums = SumOf(run.timed.requests, change.window);
  f.hit_percent = f.sums.HitPercent();
  const WindowSums quiet = SumOf(undisturbed.timed.requests, change.window);
  f.undisturbed_percent = quiet.HitPercent();
  f.quiet_p50_ms = quiet.gets.p50_ms();
  f.quiet_p99_ms = quiet.gets.p99_ms();
  const Window whole{change.window.begin + settings.warm_requests,
                     change.window.end + settings.warm_requests};
  const auto ideal = [&](std::span<const Loss> losses) {
    return HitPercentOf(
        trace, IdealHits(trace, settings.capacity_bytes, settings.block_bytes, losses), whole);
  };
  f.ideal_percent = ideal(LossesOf(run, settings));
  f.ideal_whole_percent = ideal({});
  f.forwarded = change.forwarded;
  f.ideal_bytes = BytesToMove(*change.before, *change.after, change.held);
  return f;
}

void CheckChange(const ChangeFigures& f, Report* report) {
  if (!f.killed) report->AtMost(kExact, GateName(f, "failed_gets"), f.sums.failed_gets, 0);
  if (f.lost)
    report->AtMost(kTimed, GateName(f, "points_below_ideal"), -f.PointsFromIdeal(),
                   kIdealPointsMax);
  else
    report->AtMost(kTimed, GateName(f, "points_below_undisturbed"), -f.Points(), kPointsMax);
  report->AtMost(kTimed, GateName(f, "get_p99_ratio"), f.P99Ratio(), kP99RatioMax);
  if (f.ideal_bytes > 0)
    report->AtMost(kTimed, GateName(f, "moved_ratio"), f.MovedRatio(), kMovedMax);
}

void ReportElastic(std::span<const ElasticRun> runs, const Trace& trace,
                   const ElasticSettings& settings, Report* report) {
  EMS_CHECK(!runs.empty() && runs.front().scenario == Scenario::kUndisturbed);
  FigureTable hits, moves;
  std::vector<ChangeFigures> changes;
  std::string errors;
  uint64_t wrong = 0;
  Json& json = report->json();
  json["runs"] = json["changes"] = Json::array();
  for (const ElasticRun& run : runs) {
    wrong += run.warm.totals.wrong_bytes + run.timed.totals.wrong_bytes;
    errors += ErrorLine(run);
    json["runs"].push_back(RunJson(run, settings));
    for (const Change& change : run.changes) {
      changes.push_back(FiguresOf(change, run, runs.front(), trace, settings));
      Json row = {{"scenario", NameOf(run.scenario)}};
      row.update(JsonOf(changes.back()));
      json["changes"].push_back(std::move(row));
      AddHitRow(changes.back(), &hits);
      AddMoveRow(changes.back(), &moves);
    }
  }
  report->Print(fmt::format("\n{} requests after each change, {} a second\n{}\n{}\n{}\n",
                            settings.window_requests, settings.rate, hits.Render(), moves.Render(),
                            errors));
  report->MustBeZero("wrong_bytes", wrong);
  for (const ChangeFigures& figures : changes) CheckChange(figures, report);
}

}  // namespace ems::bench
