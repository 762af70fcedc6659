#include "bench/serve_report.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

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
                     {"Benchmark duration (s):",
                      std::chrono::duration<double>(figures.elapsed).count()},
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
std::string Percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Of the side that caches, which is the last.
const ServeFigures& Cached(std::span<const ServeFigures> sides) { return sides.back(); }

double FallOf(std::span<const ServeFigures> sides) {
  if (sides.size() < 2 || sides[0].succeeded == 0 || sides[1].succeeded == 0)
    return std::numeric_limits<double>::quiet_NaN();
  return 1 - sides[1].ttft.avg_ms() / sides[0].ttft.avg_ms();
}

std::vector<terminal::Column> WithTtft(std::vector<terminal::Column> columns,
                                       std::span<const std::string> names) {
  for (const std::string& name : names)
    columns.push_back({names.size() == 1 ? "mean TTFT ms" : fmt::format("TTFT ms {}", name)});
  if (names.size() > 1) columns.push_back({"falls by"});
  return columns;
}

void AddTtft(std::span<const ServeFigures> sides, std::vector<std::string>* cells) {
  for (const ServeFigures& side : sides)
    cells->push_back(side.succeeded == 0 ? "-" : FormatMs(side.ttft.avg_ms()));
  if (sides.size() > 1) {
    const double fall = FallOf(sides);
    cells->push_back(std::isnan(fall) ? "-" : Percent(fall));
  }
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

std::string ServingBlock(const ServeFigures& figures) {
  std::string block = fmt::format("{:=^{}}\n", " Serving Benchmark Result ", kBlockColumns);
  for (const Section& section : SectionsOf(figures)) {
    if (!section.title.empty()) block += fmt::format("{:-^{}}\n", section.title, kBlockColumns);
    for (const Line& line : section.lines)
      block += fmt::format("{:<{}} {:<10}\n", line.label, kLabelColumns, Number(line));
  }
  return block + fmt::format("{:=^{}}\n", "", kBlockColumns);
}

std::string ServingBlockSideBySide(std::span<const ServeFigures> sides,
                                   std::span<const std::string> names) {
  constexpr size_t kColumns = kLabelColumns + 39;
  std::string block =
      fmt::format("{:=^{}}\n{:<{}} {:>12} {:>12} {:>12}\n", " Serving Benchmark Result ", kColumns,
                  "", kLabelColumns, names[0], names[1], "ratio");
  const std::vector<Section> first = SectionsOf(sides[0]);
  const std::vector<Section> second = SectionsOf(sides[1]);
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].title.empty()) block += fmt::format("{:-^{}}\n", first[i].title, kColumns);
    for (size_t j = 0; j < first[i].lines.size(); ++j) {
      const Line& one = first[i].lines[j];
      const Line& other = second[i].lines[j];
      block += fmt::format("{:<{}} {:>12} {:>12} {:>12}\n", one.label, kLabelColumns, Number(one),
                           Number(other),
                           one.value > 0 ? fmt::format("{:.3f}", other.value / one.value) : "-");
    }
  }
  return block + fmt::format("{:=^{}}\n", "", kColumns);
}

std::string RoundTable(const ServeResults& results, std::span<const std::string> names) {
  Table table(
      WithTtft({{"round"}, {"requests"}, {"prompt tokens"}, {"reusable"}, {"from cache"}}, names));
  for (size_t i = 0; i < results.rounds.size(); ++i) {
    const ServeRound& round = results.rounds[i];
    const ServeFigures& cached = Cached(round.sides);
    std::vector<std::string> cells = {
        fmt::format("{}", i + 1), fmt::format("{}", cached.succeeded + cached.failed),
        fmt::format("{}", round.prompt_tokens),
        Percent(Share(round.reusable_tokens, round.prompt_tokens)), Percent(cached.cached_share())};
    AddTtft(round.sides, &cells);
    table.AddRow(std::move(cells));
  }
  return table.Render();
}

std::string ReuseTable(const ServeResults& results, std::span<const std::string> names) {
  auto columns = WithTtft({{"prompts", Align::kLeft}, {"requests"}, {"from cache"}}, names);
  if (names.size() > 1) columns.push_back({"promised"});
  Table table(std::move(columns));
  for (const ServePhase& phase : results.phases) {
    if (phase.reuse == 0) continue;
    const ServeFigures& cached = Cached(phase.sides);
    std::vector<std::string> cells = {phase.name,
                                      fmt::format("{}", cached.succeeded + cached.failed),
                                      Percent(cached.cached_share())};
    AddTtft(phase.sides, &cells);
    const double promised = phase.alone ? PromisedFall(phase.reuse) : 0;
    cells.push_back(promised > 0 ? Percent(promised) : "");
    table.AddRow(std::move(cells));
  }
  return table.Render();
}

double TtftFall(const ServePhase& phase) { return FallOf(phase.sides); }

// CM §5.4.3, Fig. 23b: the paper's falls at these rates of reuse.
double PromisedFall(double reuse) {
  if (std::abs(reuse - 0.5) < 1e-9) return 0.34;
  return std::abs(reuse - 0.9) < 1e-9 ? 0.59 : 0;
}

void AddServeGates(const ServeResults& results, Report* report) {
  uint64_t failed = 0;
  for (const ServePhase& phase : results.phases)
    for (const ServeFigures& side : phase.sides) failed += side.failed;
  report->Gate(GateKind::kExact, "failed_requests", static_cast<double>(failed), GateOp::kAtMost,
               0);
  report->Gate(GateKind::kExact, "different_answers",
               static_cast<double>(results.differences.size()), GateOp::kAtMost, 0);
  for (const ServePhase& phase : results.phases) {
    if (phase.reuse == 0) continue;
    report->Gate(GateKind::kExact,
                 fmt::format("stored_tokens_found_at_{:g}_reuse{}", phase.reuse,
                             phase.alone ? "" : "_loaded"),
                 static_cast<double>(Cached(phase.sides).cached_tokens) /
                     static_cast<double>(phase.stored_tokens),
                 GateOp::kAtLeast, 1);
  }
  for (const ServePhase& phase : results.phases) {
    const double promised = phase.alone ? PromisedFall(phase.reuse) : 0;
    if (promised > 0)
      report->Gate(GateKind::kTimed, fmt::format("ttft_fall_at_{:g}_reuse", phase.reuse),
                   TtftFall(phase), GateOp::kAtLeast, promised);
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
