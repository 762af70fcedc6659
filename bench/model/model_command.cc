#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/harness/bench_command.h"
#include "bench/harness/bench_server.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/scratch_folder.h"
#include "bench/model/model_bench.h"
#include "bench/model/model_cost.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr double kColdSpeedupMin = 7;
constexpr double kDramMax = 1.05;
constexpr double kWarmVsMemcpyMin = 0.50;
constexpr uint64_t kPoolBytesMin = 256 * kMiB;  // of a cluster of the run's own
constexpr uint64_t kPoolRoom = 2;
constexpr double kSourceSlack = 0.005;  // headers are read once more, when the version is added

struct Flags : CommonFlags {
  ModelBenchSettings bench;
  std::string bytes = "256MB";
  std::string switch_bytes = "8MB";
  std::string source_rate = "64MB";
  std::string programs;
};
// Flags as the run needs them.
struct Plan {
  ModelBenchSettings bench;
  std::string programs;  // of a cluster of the run's own, which it has when no controller is given
};

double At(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted[std::min(index, sorted.size() - 1)];
}

double HitRate(const StrategyFigures& figures) {
  return Share(static_cast<uint64_t>(figures.hits), static_cast<uint64_t>(figures.switches));
}

double PerModel(uint64_t bytes, const ModelBenchResults& results) {
  return Share(bytes, results.model_bytes);
}

std::string Models(uint64_t bytes, const ModelBenchResults& results) {
  return fmt::format("{:.3f} models", PerModel(bytes, results));
}

ModelCost CostOf(ModelStrategy strategy) {
  const ModelCostInput paper;
  if (strategy == ModelStrategy::kNoCache) return CostWithoutCache(paper);
  return strategy == ModelStrategy::kLocalDram ? CostWithLocalDram(paper) : CostWithEms(paper);
}

// Strategies as measured here, and what the paper's constants make of each.
FigureTable MeasuredTable(const ModelBenchResults& results) {
  FigureTable table;
  const double none = results.strategies[0].cold_seconds;
  const double gb = static_cast<double>(results.model_bytes) / 1e9;
  for (const StrategyFigures& one : results.strategies) {
    const double loads = static_cast<double>(one.warm_seconds.size());
    const double p50 = At(one.warm_seconds, 0.5), p99 = At(one.warm_seconds, 0.99);
    const ModelCost cost = CostOf(one.strategy);
    table.AddRow();
    table.Label("strategy", "strategy", std::string(StrategyName(one.strategy)));
    table.Figure("cold s", "cold_seconds", one.cold_seconds, 2);
    table.Figure("x", "", none / one.cold_seconds, 2);
    table.Figure("read from source", "source_bytes", one.source_bytes,
                 Models(one.source_bytes, results));
    table.Figure("DRAM", "dram_bytes", one.dram_bytes, Models(one.dram_bytes, results));
    table.Figure("warm p50 s", "warm_p50_seconds", p50, FixedAboveZero(p50, 4));
    table.Figure("p99 s", "warm_p99_seconds", p99, FixedAboveZero(p99, 4));
    table.Cell("warm GB/s", p50 > 0 ? Fixed(gb / p50, 2) : "-");
    table.Field("warm_cpu_seconds_per_gb", loads > 0 ? one.warm_cpu_seconds / (loads * gb) : 0);
    table.Figure("switch hits", "switch_hit_rate", HitRate(one), PercentText(HitRate(one)));
    table.Figure("mean s", "switch_mean_seconds", Mean(one.switch_seconds), 4);
    table.Field("paper_scale", {{"cold_seconds", cost.cold_seconds},
                                {"dram_models", cost.dram_models},
                                {"warm_seconds", cost.warm_seconds},
                                {"switch_hit_rate", cost.hit_rate},
                                {"switch_mean_seconds", cost.switch_seconds}});
  }
  return table;
}

// The paper's table from its constants, and the ratios beside those measured here.
std::string PaperTable(const ModelBenchResults& results) {
  FigureTable table;
  const ModelCost none = CostOf(ModelStrategy::kNoCache);
  const StrategyFigures& none_here = results.strategies[0];
  for (const StrategyFigures& one : results.strategies) {
    const ModelCost cost = CostOf(one.strategy);
    table.AddRow();
    table.Label("at the paper's scale", "", std::string(StrategyName(one.strategy)));
    table.Figure("cold s", "", cost.cold_seconds, 0);
    table.Figure("x", "", none.cold_seconds / cost.cold_seconds, 2);
    table.Figure("x here", "", none_here.cold_seconds / one.cold_seconds, 2);
    table.Cell("DRAM", fmt::format("{:.0f} models", cost.dram_models));
    table.Cell("warm s", FixedAboveZero(cost.warm_seconds, 0));
    table.Cell("switch hits", PercentText(cost.hit_rate));
    table.Figure("mean s", "", cost.switch_seconds, 0);
    table.Figure("x", "", none.switch_seconds / cost.switch_seconds, 2);
    table.Figure("x here", "", Mean(none_here.switch_seconds) / Mean(one.switch_seconds), 2);
  }
  return table.Render();
}

void AddGates(const ModelBenchSettings& settings, const ModelBenchResults& results,
              Report* report) {
  const StrategyFigures& none = results.strategies[0];
  const StrategyFigures& ems = results.strategies[2];
  const double instances = settings.instances;
  report->AtMost(kExact, "source_reads_ems", PerModel(ems.source_bytes, results), 1 + kSourceSlack);
  report->AtLeast(kExact, "source_reads_no_cache", PerModel(none.source_bytes, results),
                  instances * (1 - kSourceSlack));
  report->AtLeast(kTimed, "cold_speedup", none.cold_seconds / ems.cold_seconds,
                  kColdSpeedupMin * instances / 8);
  report->AtMost(kExact, "dram_ems_models", PerModel(ems.dram_bytes, results), kDramMax);
  report->AtLeast(kExact, "switch_hit_rate_ems", HitRate(ems), 1);
  report->AtLeast(kTimed, "warm_vs_memcpy", results.copy_seconds / At(ems.warm_seconds, 0.5),
                  kWarmVsMemcpyMin);
}

Result<Plan> MakePlan(const Flags& flags) {
  Plan plan{.bench = flags.bench, .programs = flags.programs};
  ModelBenchSettings& settings = plan.bench;
  EMS_ASSIGN_OR_RETURN(settings.model_bytes, ParseBytes(flags.quick ? "32MB" : flags.bytes));
  EMS_ASSIGN_OR_RETURN(settings.switch_model_bytes, ParseBytes(flags.switch_bytes));
  EMS_ASSIGN_OR_RETURN(settings.source_bytes_per_s, ParseBytes(flags.source_rate));
  if (flags.quick) settings.switches = std::min(settings.switches, 16);
  if (settings.model_bytes < kMiB || settings.switch_model_bytes < kMiB ||
      settings.source_bytes_per_s < kMiB) {
    return Error(StatusCode::kInvalidArgument,
                 "--bytes, --switch-bytes and --source-rate: 1 MiB at least");
  }
  return plan;
}

// A controller and a server for this run, its files in `folder`.
Result<std::unique_ptr<BenchServer>> StartCluster(const Plan& plan, const std::string& folder) {
  return BenchServer::Start(
      {.folder = folder,
       .programs = plan.programs,
       .dram_bytes = std::max(kPoolBytesMin, kPoolRoom * PoolBytesFor(plan.bench))});
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  ModelBenchSettings settings = plan.bench;
  EMS_ASSIGN_OR_RETURN(const auto folder, ScratchFolder::Make());
  std::unique_ptr<BenchServer> own;
  if (settings.controller.empty()) {
    EMS_ASSIGN_OR_RETURN(own, StartCluster(plan, folder->path()));
    settings.controller = own->controller_address();
  }
  report->Print(fmt::format(
      "{} instances load a model of {} from one source of {}/s; then one switches {} times between "
      "{} models of {}\nblocks are read once, as with emsctl model add --no-verify: the source is "
      "plain http, and by default each would be read twice\n\n",
      settings.instances, FormatBytes(settings.model_bytes),
      FormatBytes(settings.source_bytes_per_s), settings.switches, settings.models,
      FormatBytes(settings.switch_model_bytes)));
  EMS_ASSIGN_OR_RETURN(const ModelBenchResults results, RunModelBench(settings));
  const FigureTable measured = MeasuredTable(results);
  report->Print(measured.Render());
  report->Print(fmt::format(
      "every load compared with what was made; memcpy of the model in an instance {:.4f} s\n\n",
      results.copy_seconds));
  report->Print(PaperTable(results));
  report->Print(fmt::format(
      "671 GB, 8 instances, a bucket of 2.5 GB/s of which {:.0f} % arrive (fitted to 320 s for one "
      "load), 5 s from DRAM (given); the rest follows\n\n",
      100 * ModelCostInput().bucket_share));
  report->json().update({{"model_bytes", results.model_bytes},
                         {"source_bytes_per_s", settings.source_bytes_per_s},
                         {"instances", settings.instances},
                         {"verify", "never"},  // as emsctl model add --no-verify
                         {"copy_seconds", results.copy_seconds},
                         {"strategies", measured.json()}});
  AddGates(settings, results, report);
  return OkStatus();
}

}  // namespace

void AddModelCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* model = program->AddCommand(
      "model", "Measure model loading: cold, warm and switching, with and without caches");
  model->AddOption("--controller", &flags->bench.controller,
                   "host:port of the controller; without: a cluster of the run's own",
                   {.environment = "EMS_CONTROLLER"});
  model->AddOption("--programs", &flags->programs,
                   "Folder of mp-controller and mp-server for it; beside this program by default");
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
  AddCommonOptions(
      model, flags.get(),
      {.quick = "Seconds only: a small model, few switches",
       .about =
           "no-cache: each load reads the source. local-dram: an instance keeps its last model in "
           "DRAM.\nems: the pool keeps all. Device memory is memory of the process; NPUs are not "
           "emulated here.\nThe source is an HTTP server of this bench on loopback. Models and "
           "namespace of the run are\nremoved at its end.",
       .examples = {"model --gate", "model --bytes 1GB --source-rate 256MB --instances 4"}});
  model->SetRun([=] { return RunPlanned("model", *flags, MakePlan(*flags), MeasureAndReport); });

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
