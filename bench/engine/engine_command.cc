#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/engine/eigen_product.h"
#include "bench/engine/engine_bench.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "pdc/engine/arithmetic_rates.h"
#include "pdc/engine/tensor_plan.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

// Targets for a model of some size; tiny ones spend their time between products.
constexpr double kProductOfPeak = 0.70;
constexpr double kPrefillOfPeak = 0.40;

struct Flags : CommonFlags {
  std::string model = "base";
  std::string weights = "bf16";
  std::string kv = "bf16";
  std::string kernels;
  uint32_t threads = 1;
  uint32_t prompt_tokens = 2048;
};

// Flags as the run needs them.
struct Plan {
  EngineBenchSettings settings;
  Duration arithmetic_time{0};  // of each product
};

Result<Plan> MakePlan(const Flags& flags) {
  Plan plan{.settings = {}, .arithmetic_time = std::chrono::milliseconds(flags.quick ? 20 : 400)};
  EngineBenchSettings& settings = plan.settings;
  EMS_ASSIGN_OR_RETURN(settings.config, pdc::PresetConfig(flags.model));
  if (flags.weights == "f32") settings.config.weights = pdc::WeightDtype::kF32;
  if (flags.weights == "int8") settings.config.weights = pdc::WeightDtype::kInt8;
  if (flags.kv == "f32") settings.kv.storage = pdc::KvStorage::kF32;
  settings.engine.kernels = flags.kernels;
  settings.engine.threads = flags.threads;
  settings.prompt_tokens = flags.prompt_tokens;
  if (flags.quick) {
    settings.prompt_tokens = std::min(settings.prompt_tokens, 256U);
    settings.prompts = {64, 256};
    settings.batches = {1, 4};
    settings.decode_steps = 4;
    settings.rounds = 1;
  }
  // Steps go on from there.
  if (settings.prompt_tokens + settings.decode_steps > settings.config.positions_max)
    return Error(StatusCode::kInvalidArgument, "--prompt-tokens {}: model {} has {} positions",
                 settings.prompt_tokens, flags.model, settings.config.positions_max);
  std::erase_if(settings.prompts,
                [&](uint32_t prompt) { return prompt > settings.config.positions_max; });
  return plan;
}

std::string WholePercent(double ratio) { return PercentText(ratio, 0); }

// The peak of the kernels that the engine uses, in GFLOP/s.
Result<double> ReportArithmetic(const Plan& plan, Report* report) {
  const EngineBenchSettings& settings = plan.settings;
  const pdc::ModelConfig& config = settings.config;
  const pdc::ProductShape shape = {.rows = 240,
                                   .k = config.hidden,
                                   .columns = size_t{2} * config.dense_dim,
                                   .weights = config.weights};
  const double eigen = EigenProductRate(shape.rows, shape.k, shape.columns, plan.arithmetic_time);
  FigureTable table;
  double peak = 0;
  for (const std::string& name : pdc::KernelNames()) {
    EMS_ASSIGN_OR_RETURN(const pdc::ArithmeticRates rates,
                         pdc::MeasureArithmetic(name, shape, plan.arithmetic_time));
    const bool own = settings.engine.kernels.empty() ? peak == 0 : name == settings.engine.kernels;
    if (own) peak = rates.peak;
    table.AddRow();
    table.Label("kernels", "kernels", name);
    table.Figure("peak GFLOP/s", "peak_gflops", rates.peak, 1);
    table.Figure("product GFLOP/s", "product_gflops", rates.product, 1);
    table.Cell("of peak", WholePercent(rates.product / rates.peak));
    table.Cell("of Eigen, AVX2", eigen > 0 ? Fixed(rates.product / eigen, 2) + " x" : "-");
    table.Field("eigen_gflops", eigen);
    if (own)
      report->AtLeast(kTimed, "engine_product_of_peak", rates.product / rates.peak, kProductOfPeak);
  }
  report->json()["arithmetic"] = table.json();
  report->Print(fmt::format("\none thread, {}x{} times {}x{}\n{}\n", shape.rows, shape.k, shape.k,
                            shape.columns, table.Render()));
  return peak;
}

void ReportPrefills(const char* name, const std::vector<PrefillResult>& results, double peak,
                    Report* report) {
  FigureTable table;
  for (const PrefillResult& r : results) {
    const double change = r.seconds / results.front().seconds - 1;
    table.AddRow();
    table.Label(name, "", fmt::format("{} tokens", r.prompt));
    table.Field("prompt_tokens", r.prompt);
    table.Count("cached", "cached_tokens", r.cached);
    table.Count("computed", "", r.prompt - r.cached);
    table.Figure("ms", "ms", r.seconds * 1e3, FormatMs(r.seconds * 1e3));
    table.Figure("tokens/s", "tokens_per_s", r.tokens_per_s, 0);
    table.Figure("GFLOP/s", "gflops", r.gflops, 1);
    table.Cell("of peak", WholePercent(r.gflops / peak));
    table.Cell("time", r.cached == 0 ? "" : fmt::format("{:+.0f} %", 100 * change));
  }
  report->json()[name] = table.json();
  report->Print(fmt::format("{}\n", table.Render()));
}

void ReportDecodes(const std::vector<DecodeResult>& results, Report* report) {
  FigureTable table;
  for (const DecodeResult& r : results) {
    table.AddRow();
    table.Label("decode", "", fmt::format("batch {}", r.batch));
    table.Field("batch", r.batch);
    table.Count("context", "context_tokens", r.context);
    table.Figure("ms a step", "step_ms", r.step_ms, FormatMs(r.step_ms));
    table.Figure("tokens/s", "tokens_per_s", r.tokens_per_s, 0);
  }
  report->json()["decode"] = table.json();
  report->Print(fmt::format("{}\n", table.Render()));
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  const EngineBenchSettings& settings = plan.settings;
  const pdc::ModelConfig& config = settings.config;
  report->Print(
      fmt::format("ems-bench engine: model {}, {:.1f} M parameters, {:.1f} M of them a token, "
                  "weights {}, KV {} "
                  "{} B a token, {} thread{}\n",
                  config.name, static_cast<double>(pdc::ParametersOf(config)) / 1e6,
                  static_cast<double>(pdc::ActiveParametersOf(config)) / 1e6,
                  NameOf(config.weights), NameOf(settings.kv.storage),
                  pdc::KvArena::BlockBytes(config, settings.kv) / settings.kv.block_tokens,
                  settings.engine.threads, Plural(settings.engine.threads)));
  report->json()["settings"] = {{"config", Json::parse(pdc::ToJson(config), nullptr, false)},
                                {"threads", settings.engine.threads},
                                {"kv", NameOf(settings.kv.storage)}};
  const auto wanted = [] { return !Interrupted(); };
  EMS_ASSIGN_OR_RETURN(const double one_thread, ReportArithmetic(plan, report));
  const double peak = one_thread * settings.engine.threads;
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBench> bench, EngineBench::Create(settings));
  EMS_ASSIGN_OR_RETURN(const std::vector<PrefillResult> prefills, bench->Prefills(wanted));
  ReportPrefills("prefill", prefills, peak, report);
  EMS_ASSIGN_OR_RETURN(const std::vector<PrefillResult> reuse, bench->Reuse(wanted));
  ReportPrefills("reuse", reuse, peak, report);
  EMS_ASSIGN_OR_RETURN(const std::vector<DecodeResult> decodes, bench->Decodes(wanted));
  ReportDecodes(decodes, report);
  double best = 0;
  for (const PrefillResult& r : prefills) best = std::max(best, r.gflops);
  report->AtLeast(kTimed, "engine_prefill_of_peak", best / peak, kPrefillOfPeak);
  return OkStatus();
}

}  // namespace

void AddEngineCommand(Command* program) {
  auto flags = std::make_shared<Flags>();
  Command* engine = program->AddCommand(
      "engine", "How fast the serving loop's engine computes, beside what the core can do");
  std::vector<std::string> models;
  for (const std::string_view name : pdc::PresetNames()) models.emplace_back(name);
  engine->AddOption("--model", &flags->model, "Preset", {.check = OneOf{models}});
  engine->AddOption("--weights", &flags->weights, "Their type",
                    {.check = OneOf{{"f32", "bf16", "int8"}}});
  engine->AddOption("--kv", &flags->kv, "Type of cached KV", {.check = OneOf{{"f32", "bf16"}}});
  engine->AddOption("--kernels", &flags->kernels, "Instruction set; the widest when not given",
                    {.check = OneOf{pdc::KernelNames()}});
  engine->AddOption("--threads", &flags->threads, "Of the engine", {.check = InRange{1, 64}});
  engine->AddOption("--prompt-tokens", &flags->prompt_tokens, "With a cached prefix, and of decode",
                    {.check = InRange{16, 1'000'000}});
  AddCommonOptions(
      engine, flags.get(),
      {.quick = "Seconds only: short prompts, one round",
       .about =
           "Needs no cluster. `peak`: registers multiplied with each other, as fast as the core "
           "can.\n`reuse`: a prompt of which a part is in the KV already: what is left of the "
           "time.",
       .failures = "an error or a failed gate",
       .examples = {"engine --gate",
                    "engine --model large --weights int8 --threads 2 --json engine.json"}});
  engine->SetRun([=] { return RunPlanned("engine", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
