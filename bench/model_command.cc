#include "bench/model_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "bench/interrupt.h"
#include "bench/model_bench.h"
#include "bench/model_cost.h"
#include "bench/report.h"
#include "common/bytes.h"
#include "common/command_line.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr double kColdSpeedupMin = 7;
constexpr double kDramMax = 1.05;
constexpr double kWarmVsMemcpyMin = 0.50;
constexpr double kSourceSlack = 0.005;  // headers are read once more, when the version is added

struct Flags {
  ModelBenchSettings bench;
  std::string bytes = "256MB";
  std::string switch_bytes = "8MB";
  std::string source_rate = "64MB";
  std::string json_path;
  bool quick = false;
  GateChoice gates;
};

double Mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double At(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(index, sorted.size() - 1)];
}

double HitRate(const StrategyFigures& figures) {
  return figures.switches == 0 ? 0 : static_cast<double>(figures.hits) / figures.switches;
}

double PerModel(uint64_t bytes, const ModelBenchResults& results) {
  return static_cast<double>(bytes) / static_cast<double>(results.model_bytes);
}

ModelCost CostOf(ModelStrategy strategy) {
  const ModelCostInput paper;
  if (strategy == ModelStrategy::kNoCache) return CostWithoutCache(paper);
  return strategy == ModelStrategy::kLocalDram ? CostWithLocalDram(paper) : CostWithEms(paper);
}

std::string MeasuredTable(const ModelBenchResults& results) {
  Table table({{"strategy", Align::kLeft},
               {"cold s"},
               {"x"},
               {"read from source"},
               {"DRAM"},
               {"warm p50 s"},
               {"p99 s"},
               {"warm GB/s"},
               {"switch hits"},
               {"mean s"}});
  const double none = results.strategies[0].cold_seconds;
  for (const StrategyFigures& one : results.strategies) {
    std::vector<double> switches = one.switch_seconds;
    const bool warm = !one.warm_seconds.empty();
    table.AddRow({std::string(StrategyName(one.strategy)), fmt::format("{:.2f}", one.cold_seconds),
                  fmt::format("{:.2f}", none / one.cold_seconds),
                  fmt::format("{:.3f} models", PerModel(one.source_bytes, results)),
                  fmt::format("{:.3f} models", PerModel(one.dram_bytes, results)),
                  warm ? fmt::format("{:.4f}", At(one.warm_seconds, 0.5)) : "-",
                  warm ? fmt::format("{:.4f}", At(one.warm_seconds, 0.99)) : "-",
                  warm ? fmt::format("{:.2f}", static_cast<double>(results.model_bytes) / 1e9 /
                                                   At(one.warm_seconds, 0.5))
                       : "-",
                  fmt::format("{:.1f} %", 100 * HitRate(one)),
                  fmt::format("{:.4f}", Mean(switches))});
  }
  return table.Render();
}

// The paper's table from its constants, and the ratios beside those measured here.
std::string PaperTable(const ModelBenchResults& results) {
  Table table({{"at the paper's scale", Align::kLeft},
               {"cold s"},
               {"x"},
               {"x here"},
               {"DRAM"},
               {"warm s"},
               {"switch hits"},
               {"mean s"},
               {"x"},
               {"x here"}});
  const double none = CostOf(ModelStrategy::kNoCache).cold_seconds;
  const double none_switch = CostOf(ModelStrategy::kNoCache).switch_seconds;
  for (const StrategyFigures& one : results.strategies) {
    const ModelCost cost = CostOf(one.strategy);
    table.AddRow({std::string(StrategyName(one.strategy)), fmt::format("{:.0f}", cost.cold_seconds),
                  fmt::format("{:.2f}", none / cost.cold_seconds),
                  fmt::format("{:.2f}", results.strategies[0].cold_seconds / one.cold_seconds),
                  fmt::format("{:.0f} models", cost.dram_models),
                  cost.warm_seconds > 0 ? fmt::format("{:.0f}", cost.warm_seconds) : "-",
                  fmt::format("{:.1f} %", 100 * cost.hit_rate),
                  fmt::format("{:.0f}", cost.switch_seconds),
                  fmt::format("{:.2f}", none_switch / cost.switch_seconds),
                  fmt::format("{:.2f}", Mean(results.strategies[0].switch_seconds) /
                                            Mean(one.switch_seconds))});
  }
  return table.Render();
}

Json ToJson(const ModelBenchSettings& settings, const ModelBenchResults& results) {
  Json json = {{"model_bytes", results.model_bytes},
               {"source_bytes_per_s", settings.source_bytes_per_s},
               {"instances", settings.instances},
               {"verify", "never"},  // as emsctl model add --no-verify
               {"copy_seconds", results.copy_seconds}};
  for (const StrategyFigures& one : results.strategies) {
    const ModelCost cost = CostOf(one.strategy);
    json["strategies"].push_back(
        {{"strategy", StrategyName(one.strategy)},
         {"cold_seconds", one.cold_seconds},
         {"source_bytes", one.source_bytes},
         {"dram_bytes", one.dram_bytes},
         {"warm_p50_seconds", At(one.warm_seconds, 0.5)},
         {"warm_p99_seconds", At(one.warm_seconds, 0.99)},
         {"warm_cpu_seconds_per_gb",
          one.warm_seconds.empty()
              ? 0
              : one.warm_cpu_seconds / (static_cast<double>(one.warm_seconds.size()) *
                                        static_cast<double>(results.model_bytes) / 1e9)},
         {"switch_hit_rate", HitRate(one)},
         {"switch_mean_seconds", Mean(one.switch_seconds)},
         {"paper_scale",
          {{"cold_seconds", cost.cold_seconds},
           {"dram_models", cost.dram_models},
           {"warm_seconds", cost.warm_seconds},
           {"switch_hit_rate", cost.hit_rate},
           {"switch_mean_seconds", cost.switch_seconds}}}});
  }
  return json;
}

void AddGates(const ModelBenchSettings& settings, const ModelBenchResults& results,
              Report* report) {
  const StrategyFigures& none = results.strategies[0];
  const StrategyFigures& ems = results.strategies[2];
  const double instances = settings.instances;
  report->Gate(GateKind::kExact, "source_reads_ems", PerModel(ems.source_bytes, results),
               GateOp::kAtMost, 1 + kSourceSlack);
  report->Gate(GateKind::kExact, "source_reads_no_cache", PerModel(none.source_bytes, results),
               GateOp::kAtLeast, instances * (1 - kSourceSlack));
  report->Gate(GateKind::kTimed, "cold_speedup", none.cold_seconds / ems.cold_seconds,
               GateOp::kAtLeast, kColdSpeedupMin * instances / 8);
  report->Gate(GateKind::kExact, "dram_ems_models", PerModel(ems.dram_bytes, results),
               GateOp::kAtMost, kDramMax);
  report->Gate(GateKind::kExact, "switch_hit_rate_ems", HitRate(ems), GateOp::kAtLeast, 1);
  report->Gate(GateKind::kTimed, "warm_vs_memcpy", results.copy_seconds / At(ems.warm_seconds, 0.5),
               GateOp::kAtLeast, kWarmVsMemcpyMin);
}

Result<ModelBenchSettings> SettingsOf(const Flags& flags) {
  ModelBenchSettings settings = flags.bench;
  EMS_ASSIGN_OR_RETURN(settings.model_bytes, ParseBytes(flags.quick ? "32MB" : flags.bytes));
  EMS_ASSIGN_OR_RETURN(settings.switch_model_bytes, ParseBytes(flags.switch_bytes));
  EMS_ASSIGN_OR_RETURN(settings.source_bytes_per_s, ParseBytes(flags.source_rate));
  if (flags.quick) settings.switches = std::min(settings.switches, 16);
  if (settings.model_bytes < kMiB || settings.switch_model_bytes < kMiB ||
      settings.source_bytes_per_s < kMiB) {
    return Error(StatusCode::kInvalidArgument,
                 "--bytes, --switch-bytes and --source-rate: 1 MiB at least");
  }
  return settings;
}

int RunModel(const Flags& flags) {
  CatchInterrupts();
  Report report("model", flags.json_path, flags.gates);
  const Result<ModelBenchSettings> settings = SettingsOf(flags);
  if (!settings.ok()) {
    report.Fail(ToString(settings.status()));
    return kExitUsage;
  }
  report.Print(fmt::format(
      "{} instances load a model of {} from one source of {}/s; then one switches {} times between "
      "{} models of {}\nblocks are read once, as with emsctl model add --no-verify: the source is "
      "plain http, and by default each would be read twice\n\n",
      settings->instances, FormatBytes(settings->model_bytes),
      FormatBytes(settings->source_bytes_per_s), settings->switches, settings->models,
      FormatBytes(settings->switch_model_bytes)));
  const Result<ModelBenchResults> results = RunModelBench(*settings);
  if (!results.ok()) {
    report.Fail(ToString(results.status()));
    return report.Finish();
  }
  report.Print(MeasuredTable(*results));
  report.Print(fmt::format(
      "every load compared with what was made; memcpy of the model in an instance {:.4f} s\n\n",
      results->copy_seconds));
  report.Print(PaperTable(*results));
  const ModelCostInput paper;
  report.Print(fmt::format(
      "671 GB, 8 instances, a bucket of 2.5 GB/s of which {:.0f} % arrive (fitted to 320 s for one "
      "load), 5 s from DRAM (given); the rest follows\n\n",
      100 * paper.bucket_share));
  report.json().update(ToJson(*settings, *results));
  AddGates(*settings, *results, &report);
  return report.Finish();
}

}  // namespace

void AddModelCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  flags->bench.controller = "127.0.0.1:7400";
  Command* model = program->AddCommand(
      "model", "Measure model loading: cold, warm and switching, with and without caches");
  model->AddOption("--controller", &flags->bench.controller, "host:port of the controller",
                   {.environment = "EMS_CONTROLLER"});
  model->AddOption("--bytes", &flags->bytes, "Size of the model");
  model->AddOption("--source-rate", &flags->source_rate, "Bytes a second that the source gives");
  model->AddOption("--instances", &flags->bench.instances, "Processes that load it",
                   {.check = InRange{1, 64}});
  model->AddOption("--models", &flags->bench.models, "Models that are switched between",
                   {.check = InRange{2, 64}});
  model->AddOption("--switch-bytes", &flags->switch_bytes, "Size of each of them");
  model->AddOption("--switches", &flags->bench.switches, "How often",
                   {.check = InRange{1, 100'000}});
  model->AddOption("--seed", &flags->bench.seed, "Of weights and of the order of switches");
  model->AddOption("--json", &flags->json_path, "Write the figures to this file");
  model->AddFlag("--quick", &flags->quick, "Seconds only: a small model, few switches");
  AddGateOption(model, &flags->gates);
  model->SetFooter(
      "no-cache: each load reads the source. local-dram: an instance keeps its last model in "
      "DRAM.\n"
      "ems: the pool keeps all. Device memory is memory of the process; NPUs are not emulated "
      "here.\n"
      "The source is an HTTP server of this bench on loopback. Models and namespace of the run "
      "are\n"
      "removed at its end.\n"
      "Exit codes: 0 all went well; 1 an error, a wrong byte or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench model --gate\n"
      "  ems-bench model --bytes 1GB --source-rate 256MB --instances 4");
  model->SetRun([flags] { return RunModel(*flags); });

  struct InstanceFlags {
    std::string strategy, controller, name_space;
  };
  const auto instance = std::make_shared<InstanceFlags>();
  Command* child = program->AddCommand("model-instance", "");
  child->Hide();  // not for people
  child->AddOption("--strategy", &instance->strategy, "", {.required = true});
  child->AddOption("--controller", &instance->controller, "", {.required = true});
  child->AddOption("--namespace", &instance->name_space, "", {.required = true});
  child->SetRun([instance] {
    return RunModelInstance(instance->strategy, instance->controller, instance->name_space);
  });
}

}  // namespace ems::bench
