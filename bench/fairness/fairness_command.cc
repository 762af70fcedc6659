#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/fairness/fairness_bench.h"
#include "bench/fairness/fairness_gates.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

struct Flags : CommonFlags {
  FairnessSettings settings;
};

Result<FairnessSettings> MakePlan(const Flags& flags) {
  FairnessSettings settings = flags.settings;
  if (flags.quick) {
    settings.gets = std::min<uint64_t>(settings.gets, 500);
    settings.puts = std::min<uint64_t>(settings.puts, 50);
    settings.bulk_keys = std::min<uint64_t>(settings.bulk_keys, 16);
  }
  return settings;
}

void AddRow(FigureTable* table, const std::string& call, const std::string& beside,
            const Contrast& contrast) {
  table->AddRow();
  table->Label("call", "call", call);
  table->Label("beside", "beside", beside);
  table->Figure("quiet p50 us", "quiet_p50_us", contrast.quiet.QuantileUs(0.5), 1);
  table->Figure("p99 us", "quiet_p99_us", contrast.quiet.QuantileUs(0.99), 1);
  table->Figure("beside p50 us", "busy_p50_us", contrast.busy.QuantileUs(0.5), 1);
  table->Figure("p99 us ", "busy_p99_us", contrast.busy.QuantileUs(0.99), 1);
  table->Figure("p99 ratio", "p99_ratio", contrast.p99_ratio(), 2);
}

Status MeasureAndReport(const FairnessSettings& settings, Report* report) {
  EMS_ASSIGN_OR_RETURN(const FairnessResult result, RunFairnessBench(settings));
  FigureTable table;
  AddRow(&table, "Get 4 KiB", "a bulk reader and a bulk writer", result.gets);
  AddRow(&table, "Put 1 MiB", fmt::format("{} announced Puts", settings.announced), result.puts);
  const BulkRates bulk = RatesOf(result);
  report->json()["calls"] = table.json();
  report->json()["bulk"] = {{"read_gbps", bulk.read_gbps}, {"written_gbps", bulk.written_gbps}};
  report->json()["evicted_objects"] = result.evicted_objects;
  report->Print(fmt::format(
      "\none io thread of a server, on a core of its own\n{}\n"
      "the bulk beside Gets: {} read, {} written; evicted by announced Puts: {} objects\n",
      table.Render(), FormatGbps(bulk.read_gbps), FormatGbps(bulk.written_gbps),
      result.evicted_objects));
  CheckFairness(result, report);
  return OkStatus();
}

}  // namespace

void AddFairnessCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "fairness", "Measure small calls beside others that ask the same io thread for much");
  FairnessSettings& settings = flags->settings;
  command->AddOption("--gets", &settings.gets, "Gets of 4 KiB, quiet and beside the bulk",
                     {.check = InRange{1, 10'000'000}});
  command->AddOption("--puts", &settings.puts, "Puts of 1 MiB, quiet and beside announced ones",
                     {.check = InRange{1, 100'000}});
  command->AddOption("--announced", &settings.announced, "Puts whose values never come",
                     {.check = InRange{0, 10'000}});
  command->AddOption("--programs", &settings.programs,
                     "Folder of mp-controller and mp-server; beside this program by default");
  AddCommonOptions(
      command, flags.get(),
      {.quick = "Few calls and small batches",
       .about = "Starts a controller and a server of its own, with one io thread on a core of its "
                "own.\nAll callers are on another core, where those that move bulk give way to the "
                "one that\nis measured, as if they were on other machines.",
       .examples = {"fairness --gate"}});
  command->SetRun(
      [=] { return RunPlanned("fairness", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
