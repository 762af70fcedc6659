#include "bench/serve/serve_report.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBlockColumns = 50;
constexpr size_t kLabelColumns = 40;

// Mean, median and P99 of a time; or one figure.
struct Line {
  std::string label;
  double value = 0;
  int decimals = 2;
};
struct Section {
  std::string title;  // empty: of the block
  std::vector<Line> lines;
};

Section TimesOf(std::string title, const char* name, const LatencyRecorder& times) {
  return {.title = std::move(title),
          .lines = {{fmt::format("Mean {} (ms):", name), times.avg_ms()},
                    {fmt::format("Median {} (ms):", name), times.p50_ms()},
                    {fmt::format("P99 {} (ms):", name), times.p99_ms()}}};
}

std::vector<Section> SectionsOf(const ServeFigures& figures) {
  return {{.title = "",
           .lines = {{"Successful requests:", static_cast<double>(figures.succeeded), 0},
                     {"Failed requests:", static_cast<double>(figures.failed), 0},
                     {"Benchmark duration (s):", Seconds(figures.elapsed)},
                     {"Total input tokens:", static_cast<double>(figures.prompt_tokens), 0},
                     {"Total generated tokens:", static_cast<double>(figures.output_tokens), 0},
                     {"Request throughput (req/s):", figures.requests_per_s()},
                     {"Output token throughput (tok/s):", figures.output_tokens_per_s()},
                     {"Total Token throughput (tok/s):", figures.tokens_per_s()}}},
          TimesOf("Time to First Token", "TTFT", figures.ttft),
          TimesOf("Time per Output Token (excl. 1st token)", "TPOT", figures.tpot),
          TimesOf("Inter-token Latency", "ITL", figures.itl),
          TimesOf("End-to-end Latency", "E2EL", figures.e2e),
          {.title = "Prefix Cache",
           .lines = {{"Cached input tokens:", static_cast<double>(figures.cached_tokens), 0},
                     {"Prefix hit rate (%):", 100 * figures.cached_share()}}}};
}

std::string Number(const Line& line) { return fmt::format("{:.{}f}", line.value, line.decimals); }

// Of the side that caches, which is the last.
const ServeFigures& Cached(std::span<const ServeFigures> sides) { return sides.back(); }

double FallOf(std::span<const ServeFigures> sides) {
  if (sides.size() < 2 || sides[0].succeeded == 0 || sides[1].succeeded == 0)
    return std::numeric_limits<double>::quiet_NaN();
  return 1 - sides[1].ttft.avg_ms() / sides[0].ttft.avg_ms();
}

// Mean, and from p25 to p75.
std::string SpreadText(const LatencyRecorder& times) {
  return fmt::format("{} ({}-{})", FormatMs(times.avg_ms()), FormatMs(times.QuantileMs(0.25)),
                     FormatMs(times.QuantileMs(0.75)));
}

void AddTtft(std::span<const ServeFigures> sides, std::span<const std::string> names,
             FigureTable* table) {
  for (size_t i = 0; i < sides.size(); ++i)
    table->Cell(sides.size() == 1 ? "mean TTFT ms" : fmt::format("TTFT ms {}", names[i]),
                sides[i].succeeded == 0 ? "-" : SpreadText(sides[i].ttft));
  if (sides.size() < 2) return;
  const double fall = FallOf(sides);
  table->Cell("saved", std::isnan(fall) ? "-" : PercentText(fall));
}

Json SidesJson(std::span<const ServeFigures> sides, std::span<const std::string> names) {
  Json json = Json::array();
  for (size_t i = 0; i < sides.size(); ++i) {
    Json side = {{"side", names[i]}};
    side.update(FiguresJson(sides[i]));
    json.push_back(std::move(side));
  }
  return json;
}

}  // namespace

std::string ServingBlock(std::span<const ServeFigures> sides, std::span<const std::string> names) {
  const bool two = sides.size() > 1;
  const size_t columns = two ? kLabelColumns + 39 : kBlockColumns;
  std::string block = fmt::format("{:=^{}}\n", " Serving Benchmark Result ", columns);
  if (two)
    block += fmt::format("{:<{}} {:>12} {:>12} {:>12}\n", "", kLabelColumns, names[0], names[1],
                         "ratio");
  const std::vector<Section> first = SectionsOf(sides.front()), second = SectionsOf(sides.back());
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].title.empty()) block += fmt::format("{:-^{}}\n", first[i].title, columns);
    for (size_t j = 0; j < first[i].lines.size(); ++j) {
      const Line& one = first[i].lines[j];
      const Line& other = second[i].lines[j];
      block += fmt::format("{:<{}} ", one.label, kLabelColumns);
      block += two ? fmt::format("{:>12} {:>12} {:>12}\n", Number(one), Number(other),
                                 one.value > 0 ? Fixed(other.value / one.value, 3) : "-")
                   : fmt::format("{:<10}\n", Number(one));
    }
  }
  return block + fmt::format("{:=^{}}\n", "", columns);
}

std::string RoundTable(const ServeResults& results, std::span<const std::string> names) {
  FigureTable table;
  for (size_t i = 0; i < results.rounds.size(); ++i) {
    const ServeRound& round = results.rounds[i];
    const ServeFigures& cached = Cached(round.sides);
    table.AddRow();
    table.Count("round", "", i + 1);
    table.Count("requests", "", cached.succeeded + cached.failed);
    table.Count("prompt tokens", "", round.prompt_tokens);
    table.Cell("reusable", PercentText(Share(round.reusable_tokens, round.prompt_tokens)));
    table.Cell("from cache", PercentText(cached.cached_share()));
    AddTtft(round.sides, names, &table);
  }
  return table.Render();
}

std::string ReuseTable(const ServeResults& results, std::span<const std::string> names) {
  FigureTable table;
  for (const ServePhase& phase : results.phases) {
    if (phase.reuse == 0) continue;
    const ServeFigures& cached = Cached(phase.sides);
    table.AddRow();
    table.Label("prompts", "", phase.name);
    table.Count("requests", "", cached.succeeded + cached.failed);
    table.Cell("from cache", PercentText(cached.cached_share()));
    AddTtft(phase.sides, names, &table);
    const double target = phase.alone ? TargetFall(phase.reuse) : 0;
    if (names.size() > 1) table.Cell("target", target > 0 ? PercentText(target) : "");
  }
  return table.Render();
}

double TtftFall(const ServePhase& phase) { return FallOf(phase.sides); }

// CM §5.4.3, Fig. 23b: the paper's falls at these rates of reuse.
double TargetFall(double reuse) {
  if (std::abs(reuse - 0.5) < 1e-9) return 0.34;
  return std::abs(reuse - 0.9) < 1e-9 ? 0.59 : 0;
}

void AddServeGates(const ServeResults& results, Report* report) {
  uint64_t failed = 0;
  for (const ServePhase& phase : results.phases)
    for (const ServeFigures& side : phase.sides) failed += side.failed;
  report->AtMost(kExact, "failed_requests", failed, 0);
  report->AtMost(kExact, "different_answers", results.differences.size(), 0);
  for (const ServePhase& phase : results.phases) {
    if (phase.reuse == 0) continue;
    report->AtLeast(kExact,
                    fmt::format("stored_tokens_found_at_{:g}_reuse{}", phase.reuse,
                                phase.alone ? "" : "_loaded"),
                    static_cast<double>(Cached(phase.sides).cached_tokens) /
                        static_cast<double>(phase.stored_tokens),
                    1);
  }
  for (const ServePhase& phase : results.phases) {
    const double target = phase.alone ? TargetFall(phase.reuse) : 0;
    if (target > 0)
      report->AtLeast(kTimed, fmt::format("ttft_fall_at_{:g}_reuse", phase.reuse), TtftFall(phase),
                      target);
  }
}

Json ServeJson(const ServeResults& results, std::span<const std::string> names) {
  Json json;
  for (const ServePhase& phase : results.phases) {
    Json one = {{"name", phase.name}, {"reuse", phase.reuse}, {"one_at_a_time", phase.alone}};
    one["sides"] = SidesJson(phase.sides, names);
    if (const double fall = TtftFall(phase); !std::isnan(fall)) one["ttft_fall"] = fall;
    json["phases"].push_back(std::move(one));
  }
  for (const ServeRound& round : results.rounds) {
    json["rounds"].push_back({{"prompt_tokens", round.prompt_tokens},
                              {"reusable_tokens", round.reusable_tokens},
                              {"sides", SidesJson(round.sides, names)}});
  }
  json["different_answers"] = results.differences.size();
  return json;
}

}  // namespace ems::bench
