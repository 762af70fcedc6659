#include "bench/paper/paper_command.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/paper/paper_decode.h"
#include "bench/paper/paper_inputs.h"
#include "bench/paper/paper_prefill.h"
#include "bench/paper/paper_production.h"
#include "bench/paper/paper_trace.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

struct Flags : CommonFlags {
  std::string trace_path;
  TraceScenario scenario;
};

Json RowJson(const PaperSection& section, const PaperRow& row) {
  Json json = {{"id", row.id},
               {"section", section.title},
               {"name", row.name},
               {"unit", row.unit},
               {"paper", row.paper},
               {"ours", row.ours},
               {"ratio", row.ratio()},
               {"kind", RowKindName(row.kind)},
               {"tolerance_percent", row.tolerance_percent},
               {"within_tolerance", row.within_tolerance()}};
  if (row.known_percent > 0) json["known_percent"] = row.known_percent;
  return json;
}

void GateRow(const PaperRow& row, Report* report) {
  const bool known = !row.within_tolerance() && row.known_percent > 0;
  report->AtMost(kExact, row.id + (known ? "_known_percent_off" : "_percent_off"),
                 row.off_percent(), known ? row.known_percent : row.tolerance_percent);
}

void ReportSummary(const std::vector<PaperSection>& sections, Report* report) {
  Table table({{"rows", Align::kLeft}, {"all"}, {"within tolerance"}, {"known to be off"}});
  for (const RowKind kind : {RowKind::kInput, RowKind::kFit, RowKind::kPrediction}) {
    int all = 0, within = 0, known = 0;
    for (const PaperSection& section : sections) {
      for (const PaperRow& row : section.rows) {
        if (row.kind != kind) continue;
        all += 1;
        within += row.within_tolerance() ? 1 : 0;
        known += !row.within_tolerance() && row.known_percent > 0 ? 1 : 0;
      }
    }
    table.AddRow({RowKindName(kind), fmt::format("{}", all), fmt::format("{}", within),
                  fmt::format("{}", known)});
    report->json()["summary"][RowKindName(kind)] = {
        {"all", all}, {"within_tolerance", within}, {"known", known}};
  }
  report->Print(table.Render() + "\n");
}

Status ReportTrace(const Flags& flags, const pdc::CostConstants& constants, Report* report) {
  EMS_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(flags.trace_path));
  EMS_ASSIGN_OR_RETURN(const std::vector<TraceOutcome> outcomes,
                       ReplayInVirtualTime(trace, flags.scenario, constants));
  FigureTable table;
  for (const TraceOutcome& o : outcomes) {
    const auto& r = o.result;
    table.AddRow();
    table.Label("trace", "name", o.name);
    table.Count("served", "served", r.served);
    table.Field("refused", r.refused);
    table.Figure("hits, % of tokens", "hit_rate", o.hit_rate(), Fixed(100 * o.hit_rate(), 2));
    table.Figure("TTFT mean, ms", "ttft_mean_ms", 1e3 * r.mean_ttft_s(), 1);
    table.Figure("p50", "", 1e3 * r.ttft_quantile_s(0.5), 1);
    table.Figure("p99", "ttft_p99_ms", 1e3 * r.ttft_quantile_s(0.99), 1);
    table.Figure("TPOT mean, ms", "tpot_mean_ms", 1e3 * r.mean_tpot_s(), 1);
    table.Figure("p99", "tpot_p99_ms", 1e3 * r.tpot_quantile_s(0.99), 1);
    table.Figure("prefill busy, %", "prefill_busy", o.prefill_busy(),
                 Fixed(100 * o.prefill_busy(), 1));
    table.Field("arrivals_s", o.span_s);
    table.Figure("span, s", "end_s", r.end_s, 0);
  }
  report->json()["trace"] = table.json();
  report->Print(table.Render() + "\n");
  return OkStatus();
}

Json Fig23Json(const pdc::CostConstants& constants) {
  Json points;
  for (const ReusePoint& at : Fig23Points(constants))
    points.push_back({{"reuse", at.reuse},
                      {"ub", {{"throughput", at.ub_throughput}, {"ttft_ms", at.ub_ttft_ms}}},
                      {"vpc", {{"throughput", at.vpc_throughput}, {"ttft_ms", at.vpc_ttft_ms}}}});
  return points;
}

Status ReportAll(const Flags& flags, Report* report) {
  const pdc::CostConstants constants;
  report->Print(
      "ems-bench paper: DeepSeek-R1 on CloudMatrix384, computed by the cost model in virtual time\n"
      "kind: input = what the model is made of; fit = a constant was fitted to it; prediction = "
      "neither\n\n");
  const std::vector<PaperSection> sections = AllPaperSections(constants);
  for (const PaperSection& section : sections) {
    report->Print(RenderSection(section));
    for (const PaperRow& row : section.rows)
      report->json()["rows"].push_back(RowJson(section, row));
  }
  ReportSummary(sections, report);
  report->json()["fig23"] = Fig23Json(constants);
  if (!flags.trace_path.empty()) EMS_RETURN_IF_ERROR(ReportTrace(flags, constants, report));
  for (const PaperSection& section : sections)
    for (const PaperRow& row : section.rows) GateRow(row, report);
  return OkStatus();
}

void AddTraceFlags(Command* paper, Flags* flags) {
  TraceScenario& scenario = flags->scenario;
  paper->AddOption("--trace", &flags->trace_path,
                   "Serve this trace (JSON lines, as ems-bench trace reads them) on 384 NPUs too");
  paper->AddOption("--repeat", &scenario.repeat, "The trace this often in a row, as new prompts",
                   {.check = InRange{1, 1000}});
  paper->AddOption("--speedup", &scenario.speedup, "Of the trace's arrivals",
                   {.check = InRange{0.001, 10'000.0}});
  paper->AddOption("--prefill-instances", &scenario.prefill_instances, "Of 16 NPUs each",
                   {.check = InRange{1, 23}});
  paper->AddOption("--decode-npus", &scenario.decode_npus, "NPUs of the decode instance",
                   {.check = InRange{4, 368}});
  paper->AddOption("--pool-gb", &scenario.pool_gb, "DRAM for KV, 1e9 bytes",
                   {.check = InRange{0.0, 1e6}});
}

}  // namespace

std::vector<PaperSection> AllPaperSections(const pdc::CostConstants& c) {
  return {Fig23(c),
          Table2(),
          Table3(c),
          PrefillMicrobatching(c),
          Tables4And5(c),
          MtpAblation(c),
          DecodeMicrobatching(c),
          XdsPeak(c),
          XdsDisaggregated(c),
          XdsProduction(c),
          OperatorTables(c),
          ModelShapes(c),
          OtherArithmetic(c)};
}

void AddPaperCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* paper = program->AddCommand(
      "paper", "The papers' figures and tables beside those of the cost model, in virtual time");
  AddTraceFlags(paper, flags.get());
  AddCommonOptions(
      paper, flags.get(),
      {.quick = "Nothing less is done: it takes a second",
       .about = "Needs no cluster. docs/COST_MODEL.md explains the model and lists its fitted "
                "constants.",
       .failures = "an error or a failed gate",
       .examples = {"paper --gate --json paper.json",
                    "paper --trace conversation_trace.jsonl --repeat 24 --speedup 8"},
       .has_plot = true});
  paper->SetRun([=] {
    return RunReported("paper", *flags, [&](Report* report) { return ReportAll(*flags, report); });
  });
}

}  // namespace ems::bench
