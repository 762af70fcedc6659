#include "bench/paper_command.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/paper_decode.h"
#include "bench/paper_inputs.h"
#include "bench/paper_prefill.h"
#include "bench/paper_production.h"
#include "bench/paper_trace.h"
#include "bench/report.h"
#include "common/command_line.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

struct Flags {
  std::string json_path, plot_path, trace_path;
  TraceScenario scenario;
  bool quick = false;
  GateChoice gates;
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
  if (row.within_tolerance() || row.known_percent == 0) {
    report->Gate(GateKind::kExact, row.id + "_percent_off", row.off_percent(), GateOp::kAtMost,
                 row.tolerance_percent);
    return;
  }
  report->Gate(GateKind::kExact, row.id + "_known_percent_off", row.off_percent(), GateOp::kAtMost,
               row.known_percent);
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
  Table table({{"trace", Align::kLeft},
               {"served"},
               {"hits, % of tokens"},
               {"TTFT mean, ms"},
               {"p50"},
               {"p99"},
               {"TPOT mean, ms"},
               {"p99"},
               {"prefill busy, %"},
               {"span, s"}});
  for (const TraceOutcome& o : outcomes) {
    const auto ms = [](double s) { return fmt::format("{:.1f}", 1e3 * s); };
    table.AddRow({o.name, fmt::format("{}", o.result.served),
                  fmt::format("{:.2f}", 100 * o.hit_rate()), ms(o.result.mean_ttft_s()),
                  ms(o.result.ttft_quantile_s(0.5)), ms(o.result.ttft_quantile_s(0.99)),
                  ms(o.result.mean_tpot_s()), ms(o.result.tpot_quantile_s(0.99)),
                  fmt::format("{:.1f}", 100 * o.prefill_busy()),
                  fmt::format("{:.0f}", o.result.end_s)});
    report->json()["trace"].push_back({{"name", o.name},
                                       {"served", o.result.served},
                                       {"refused", o.result.refused},
                                       {"hit_rate", o.hit_rate()},
                                       {"ttft_mean_ms", 1e3 * o.result.mean_ttft_s()},
                                       {"ttft_p99_ms", 1e3 * o.result.ttft_quantile_s(0.99)},
                                       {"tpot_mean_ms", 1e3 * o.result.mean_tpot_s()},
                                       {"tpot_p99_ms", 1e3 * o.result.tpot_quantile_s(0.99)},
                                       {"prefill_busy", o.prefill_busy()},
                                       {"arrivals_s", o.span_s},
                                       {"end_s", o.result.end_s}});
  }
  report->Print(table.Render() + "\n");
  return OkStatus();
}

int RunPaper(const Flags& flags) {
  Report report("paper", flags.json_path, flags.gates);
  const pdc::CostConstants constants;
  report.Print(
      "ems-bench paper: DeepSeek-R1 on CloudMatrix384, computed by the cost model in virtual time\n"
      "kind: input = what the model is made of; fit = a constant was fitted to it; prediction = "
      "neither\n\n");
  const std::vector<PaperSection> sections = AllPaperSections(constants);
  for (const PaperSection& section : sections) {
    report.Print(RenderSection(section));
    for (const PaperRow& row : section.rows) report.json()["rows"].push_back(RowJson(section, row));
  }
  ReportSummary(sections, &report);
  if (!flags.trace_path.empty()) {
    const Status status = ReportTrace(flags, constants, &report);
    if (!status.ok()) report.Fail(ToString(status));
  }
  if (!flags.plot_path.empty()) {
    const Status status = WriteWhole(flags.plot_path, RenderSvg(Fig23Plot(constants)));
    if (!status.ok()) report.Fail(ToString(status));
  }
  for (const PaperSection& section : sections)
    for (const PaperRow& row : section.rows) GateRow(row, &report);
  return report.Finish();
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
  paper->AddOption("--plot", &flags->plot_path, "Write Fig. 23a and 23b as SVG to this file");
  paper->AddOption("--json", &flags->json_path, "Write the figures to this file");
  paper->AddFlag("--quick", &flags->quick, "Nothing less is done: it takes a second");
  AddGateOption(paper, &flags->gates);
  paper->SetFooter(
      "Needs no cluster. docs/COST_MODEL.md explains the model and lists its fitted constants.\n"
      "Exit codes: 0 all went well; 1 an error or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench paper --gate --plot fig23.svg\n"
      "  ems-bench paper --trace conversation_trace.jsonl --repeat 24 --speedup 8");
  paper->SetRun([flags] { return RunPaper(*flags); });
}

}  // namespace ems::bench
