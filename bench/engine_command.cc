#include "bench/engine_command.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/eigen_product.h"
#include "bench/engine_bench.h"
#include "bench/interrupt.h"
#include "bench/report.h"
#include "common/command_line.h"
#include "pdc/engine/arithmetic_rates.h"
#include "pdc/engine/tensor_plan.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Table;

// What is promised of a model of some size; tiny ones spend their time between products.
constexpr double kProductOfPeak = 0.70;
constexpr double kPrefillOfPeak = 0.40;

struct Flags {
  std::string model = "base";
  std::string weights = "bf16";
  std::string kv = "bf16";
  std::string kernels;
  uint32_t threads = 1;
  uint32_t prompt_tokens = 2048;
  std::string json_path;
  bool quick = false;
  GateChoice gates;
};

Result<EngineBenchSettings> MakeSettings(const Flags& flags) {
  EngineBenchSettings settings;
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
  return settings;
}

std::string Number(double value) { return fmt::format("{:.1f}", value); }
std::string Percent(double ratio) { return fmt::format("{:.0f} %", 100 * ratio); }

struct Rates {
  double peak = 0;  // of the kernels that the engine uses
};

Result<Rates> ReportArithmetic(const EngineBenchSettings& settings, bool quick, Report* report) {
  const auto time = std::chrono::milliseconds(quick ? 20 : 400);
  const pdc::ModelConfig& config = settings.config;
  const pdc::ProductShape shape = {.rows = 240,
                                   .k = config.hidden,
                                   .columns = size_t{2} * config.dense_dim,
                                   .weights = config.weights};
  const double eigen = EigenProductRate(shape.rows, shape.k, shape.columns, time);
  Table table({{"kernels", terminal::Align::kLeft},
               {"peak GFLOP/s"},
               {"product GFLOP/s"},
               {"of peak"},
               {"of Eigen, AVX2"}});
  Rates used;
  for (const std::string& name : pdc::KernelNames()) {
    EMS_ASSIGN_OR_RETURN(const pdc::ArithmeticRates rates,
                         pdc::MeasureArithmetic(name, shape, time));
    const bool own =
        settings.engine.kernels.empty() ? used.peak == 0 : name == settings.engine.kernels;
    if (own) used.peak = rates.peak;
    table.AddRow({name, Number(rates.peak), Number(rates.product),
                  Percent(rates.product / rates.peak),
                  eigen > 0 ? fmt::format("{:.2f} x", rates.product / eigen) : "-"});
    report->json()["arithmetic"].push_back({{"kernels", name},
                                            {"peak_gflops", rates.peak},
                                            {"product_gflops", rates.product},
                                            {"eigen_gflops", eigen}});
    if (own)
      report->Gate(GateKind::kTimed, "engine_product_of_peak", rates.product / rates.peak,
                   GateOp::kAtLeast, kProductOfPeak);
  }
  report->Print(fmt::format("\none thread, {}x{} times {}x{}\n{}\n", shape.rows, shape.k, shape.k,
                            shape.columns, table.Render()));
  return used;
}

void ReportPrefills(const char* name, const std::vector<PrefillResult>& results, double peak,
                    Report* report) {
  Table table({{name, terminal::Align::kLeft},
               {"cached"},
               {"computed"},
               {"ms"},
               {"tokens/s"},
               {"GFLOP/s"},
               {"of peak"},
               {"time"}});
  for (const PrefillResult& r : results) {
    const double change = r.seconds / results.front().seconds - 1;
    table.AddRow({fmt::format("{} tokens", r.prompt), fmt::format("{}", r.cached),
                  fmt::format("{}", r.prompt - r.cached), FormatMs(r.seconds * 1e3),
                  fmt::format("{:.0f}", r.tokens_per_s), Number(r.gflops), Percent(r.gflops / peak),
                  r.cached == 0 ? "" : fmt::format("{:+.0f} %", 100 * change)});
    report->json()[name].push_back({{"prompt_tokens", r.prompt},
                                    {"cached_tokens", r.cached},
                                    {"ms", r.seconds * 1e3},
                                    {"tokens_per_s", r.tokens_per_s},
                                    {"gflops", r.gflops}});
  }
  report->Print(fmt::format("{}\n", table.Render()));
}

void ReportDecodes(const std::vector<DecodeResult>& results, Report* report) {
  Table table({{"decode", terminal::Align::kLeft}, {"context"}, {"ms a step"}, {"tokens/s"}});
  for (const DecodeResult& r : results) {
    table.AddRow({fmt::format("batch {}", r.batch), fmt::format("{}", r.context),
                  FormatMs(r.step_ms), fmt::format("{:.0f}", r.tokens_per_s)});
    report->json()["decode"].push_back({{"batch", r.batch},
                                        {"context_tokens", r.context},
                                        {"step_ms", r.step_ms},
                                        {"tokens_per_s", r.tokens_per_s}});
  }
  report->Print(fmt::format("{}\n", table.Render()));
}

Status MeasureAndReport(const EngineBenchSettings& settings, const Flags& flags, Report* report) {
  const pdc::ModelConfig& config = settings.config;
  report->Print(
      fmt::format("ems-bench engine: model {}, {:.1f} M parameters, {:.1f} M of them a token, "
                  "weights {}, KV {} "
                  "{} B a token, {} thread{}\n",
                  config.name, static_cast<double>(pdc::ParametersOf(config)) / 1e6,
                  static_cast<double>(pdc::ActiveParametersOf(config)) / 1e6,
                  NameOf(config.weights), NameOf(settings.kv.storage),
                  pdc::KvArena::BlockBytes(config, settings.kv) / settings.kv.block_tokens,
                  settings.engine.threads, settings.engine.threads == 1 ? "" : "s"));
  report->json()["settings"] = {{"config", Json::parse(pdc::ToJson(config), nullptr, false)},
                                {"threads", settings.engine.threads},
                                {"kv", NameOf(settings.kv.storage)}};
  const auto wanted = [] { return !Interrupted(); };
  EMS_ASSIGN_OR_RETURN(const Rates rates, ReportArithmetic(settings, flags.quick, report));
  const double peak = rates.peak * settings.engine.threads;
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<EngineBench> bench, EngineBench::Create(settings));
  EMS_ASSIGN_OR_RETURN(const std::vector<PrefillResult> prefills, bench->Prefills(wanted));
  ReportPrefills("prefill", prefills, peak, report);
  EMS_ASSIGN_OR_RETURN(const std::vector<PrefillResult> reuse, bench->Reuse(wanted));
  ReportPrefills("reuse", reuse, peak, report);
  EMS_ASSIGN_OR_RETURN(const std::vector<DecodeResult> decodes, bench->Decodes(wanted));
  ReportDecodes(decodes, report);
  double best = 0;
  for (const PrefillResult& r : prefills) best = std::max(best, r.gflops);
  report->Gate(GateKind::kTimed, "engine_prefill_of_peak", best / peak, GateOp::kAtLeast,
               kPrefillOfPeak);
  return OkStatus();
}

int RunEngine(const Flags& flags) {
  const Result<EngineBenchSettings> settings = MakeSettings(flags);
  if (!settings.ok()) {
    fmt::print(stderr, "ems-bench engine: {}\n", Message(settings.status()));
    return kExitUsage;
  }
  Report report("engine", flags.json_path, flags.gates);
  CatchInterrupts();
  const Status status = MeasureAndReport(*settings, flags, &report);
  if (!status.ok()) report.Fail(ToString(status));
  return report.Finish();
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
  engine->AddOption("--json", &flags->json_path, "Write the figures to this file");
  engine->AddFlag("--quick", &flags->quick, "Seconds only: short prompts, one round");
  AddGateOption(engine, &flags->gates);
  engine->SetFooter(
      "Needs no cluster. `peak`: registers multiplied with each other, as fast as the core can.\n"
      "`reuse`: a prompt of which a part is in the KV already: what is left of the time.\n"
      "Exit codes: 0 all went well; 1 an error or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench engine --gate\n"
      "  ems-bench engine --model large --weights int8 --threads 2 --json engine.json");
  engine->SetRun([flags] { return RunEngine(*flags); });
}

}  // namespace ems::bench
