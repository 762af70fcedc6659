#include "bench/memory_command.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/event_cost.h"
#include "bench/interrupt.h"
#include "bench/memory_bench.h"
#include "bench/report.h"
#include "common/command_line.h"
#include "mp_server/segment_pool.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Table;

constexpr double kUniformEfficiency = 0.95;
constexpr double kMixedEfficiency = 0.90;
constexpr double kReserveP99UsMax = 2;
constexpr double kHalfMsMax = 5000;
// One layer of 128 tokens of a model with latent attention, and all its 61 layers.
constexpr uint64_t kLayerBlock = 147'456;
constexpr uint64_t kWholeBlock = 8'994'816;
constexpr uint64_t kSegmentMin = 2 * kMiB;
constexpr char kTenants[] = "tenants";
constexpr char kEvents[] = "events";
constexpr double kEventsRatioMax = 1.25;

std::vector<MemoryScenario> AllScenarios() {
  const MemorySizes small = {4 * kKiB, 256 * kKiB};
  const MemorySizes large = {256 * kKiB, 16 * kMiB};
  return {{"uniform_147KB", {{kLayerBlock, kLayerBlock}}, kUniformEfficiency, 0.6, 3},
          {"uniform_9MB", {{kWholeBlock, kWholeBlock}}, kUniformEfficiency, 0.6, 3},
          {"mixed", {{4 * kKiB, 16 * kMiB}}, kMixedEfficiency, -1, 20},
          {"shift", {small, large, small}, kMixedEfficiency, 0.5, 35}};
}

struct Flags {
  std::string pool_bytes = "1GiB";
  std::string segment_bytes = "0";
  std::string huge_pages = "try";
  std::vector<std::string> only;
  std::string json_path;
  MemorySettings settings{.insertions = 200'000};
  bool quick = false;
  GateChoice gates;
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  std::vector<MemoryScenario> scenarios;
  bool tenants = false;
  bool events = false;
};

Result<Plan> MakePlan(Flags flags) {
  if (flags.quick) {
    flags.settings.insertions = std::min<uint64_t>(flags.settings.insertions, 5000);
    flags.settings.samples = 100;
  }
  MemorySettings& settings = flags.settings;
  EMS_ASSIGN_OR_RETURN(settings.pool_bytes, ParseBytes(flags.pool_bytes));
  EMS_ASSIGN_OR_RETURN(settings.segment_bytes, ParseBytes(flags.segment_bytes));
  if (settings.segment_bytes == 0)
    settings.segment_bytes = server::SegmentPool::DefaultSegmentBytes(settings.pool_bytes);
  if (settings.segment_bytes < kSegmentMin || settings.segment_bytes % kSegmentMin != 0 ||
      settings.pool_bytes < 2 * settings.segment_bytes) {
    return Error(
        StatusCode::kInvalidArgument,
        "--segment-bytes {} has to be a multiple of 2 MiB and at most half of --pool-bytes "
        "{}",
        flags.segment_bytes, flags.pool_bytes);
  }
  if (flags.huge_pages == "off") settings.huge_pages = fabric::HugePages::kOff;
  if (flags.huge_pages == "require") settings.huge_pages = fabric::HugePages::kRequire;
  Plan plan;
  const auto wanted = [&](const std::string& name) {
    return flags.only.empty() ||
           std::find(flags.only.begin(), flags.only.end(), name) != flags.only.end();
  };
  for (MemoryScenario& scenario : AllScenarios())
    if (wanted(scenario.name)) plan.scenarios.push_back(std::move(scenario));
  plan.tenants = wanted(kTenants);
  plan.events = wanted(kEvents);
  plan.flags = std::move(flags);
  return plan;
}

double Us(const LatencyRecorder& latencies, double quantile) {
  return latencies.QuantileMs(quantile) * 1000;
}

std::string Percent(double ratio) { return fmt::format("{:.2f}", 100 * ratio); }

Json LatencyUsJson(const LatencyRecorder& latencies) {
  return {{"count", latencies.count()},
          {"p50_us", Us(latencies, 0.5)},
          {"p99_us", Us(latencies, 0.99)},
          {"p999_us", Us(latencies, 0.999)},
          {"max_us", latencies.max_ms() * 1000}};
}

Json ResultJson(const MemoryResult& r) {
  return {{"scenario", r.name},
          {"efficiency",
           {{"min", r.efficiency_min},
            {"mean", r.efficiency_mean},
            {"end", r.efficiency_end},
            {"samples", r.samples}}},
          {"reserve", LatencyUsJson(r.reserve)},
          {"reserve_and_publish", LatencyUsJson(r.put)},
          {"insertions", r.insertions},
          {"evictions_per_insertion", r.evictions_per_insertion()},
          {"refused", r.refused},
          {"hit_rate", r.hit_rate(r.hits)},
          {"ideal_hit_rate", r.hit_rate(r.ideal_hits)},
          {"byte_hit_rate", r.byte_hit_rate(r.hits)},
          {"ideal_byte_hit_rate", r.byte_hit_rate(r.ideal_hits)}};
}

void PrintResults(const std::vector<MemoryResult>& results, Report* report) {
  if (results.empty()) return;
  std::vector<terminal::Column> columns = {{"scenario", terminal::Align::kLeft}};
  for (const char* title :
       {"payload % min", "mean", "end", "Reserve p50 us", "p99", "p99.9", "max", "+Publish p99",
        "evicted/put", "refused", "hit %", "ideal %", "hit % of bytes", "ideal"})
    columns.push_back({title});
  Table table(columns);
  for (const MemoryResult& r : results) {
    table.AddRow(
        {r.name, Percent(r.efficiency_min), Percent(r.efficiency_mean), Percent(r.efficiency_end),
         fmt::format("{:.2f}", Us(r.reserve, 0.5)), fmt::format("{:.2f}", Us(r.reserve, 0.99)),
         fmt::format("{:.2f}", Us(r.reserve, 0.999)),
         fmt::format("{:.0f}", r.reserve.max_ms() * 1000), fmt::format("{:.2f}", Us(r.put, 0.99)),
         fmt::format("{:.2f}", r.evictions_per_insertion()), fmt::format("{}", r.refused),
         Percent(r.hit_rate(r.hits)), Percent(r.hit_rate(r.ideal_hits)),
         Percent(r.byte_hit_rate(r.hits)), Percent(r.byte_hit_rate(r.ideal_hits))});
  }
  report->Print(fmt::format("\n{}\n", table.Render()));
}

void JudgeResult(const MemoryResult& r, const MemoryScenario& scenario, Report* report) {
  if (r.refused > 0)
    report->Fail(
        fmt::format("{}: {} insertions found no room in a pool in which nothing is held: {}",
                    r.name, r.refused, r.refusal));
  report->Gate(GateKind::kExact, r.name + "_efficiency_min", r.efficiency_min, GateOp::kAtLeast,
               scenario.efficiency_min);
  report->Gate(GateKind::kTimed, r.name + "_reserve_p99_us",
               r.reserve.count() == 0 ? std::nan("") : Us(r.reserve, 0.99), GateOp::kAtMost,
               kReserveP99UsMax);
  report->Gate(GateKind::kTimed, r.name + "_reserve_and_publish_p99_us",
               r.put.count() == 0 ? std::nan("") : Us(r.put, 0.99), GateOp::kAtMost,
               scenario.put_p99_us_max);
  report->Gate(GateKind::kExact, r.name + "_hit_points_below_ideal",
               100 * (r.hit_rate(r.ideal_hits) - r.hit_rate(r.hits)), GateOp::kAtMost,
               scenario.hit_points_below);
}

void ReportTenants(const TenantsResult& r, Report* report) {
  report->Print(fmt::format(
      "tenants: one fills the pool and goes quiet, the other stores without a pause\n"
      "  first object after {:.1f} ms, half of the pool after {:.1f} ms, {} refused meanwhile\n"
      "  memory at the end: quiet {}, growing {} of {}\n"
      "  memfds that held objects: quiet {}, growing {}, both {}\n"
      "  Reserve of the growing tenant: p50 {:.2f} us, p99 {:.2f} us, most {:.0f} us\n\n",
      r.first_segment_ms, r.half_ms, r.refused, FormatBytes(r.quiet_bytes),
      FormatBytes(r.growing_bytes), FormatBytes(r.pool_bytes), r.quiet_files, r.growing_files,
      r.files_in_both, Us(r.reserve, 0.5), Us(r.reserve, 0.99), r.reserve.max_ms() * 1000));
  report->json()["tenants"] = {{"first_object_ms", r.first_segment_ms},
                               {"half_ms", r.half_ms},
                               {"refused", r.refused},
                               {"quiet_bytes", r.quiet_bytes},
                               {"growing_bytes", r.growing_bytes},
                               {"quiet_files", r.quiet_files},
                               {"growing_files", r.growing_files},
                               {"files_in_both", r.files_in_both},
                               {"reserve", LatencyUsJson(r.reserve)}};
  if (r.half_ms < 0) report->Fail("tenants: the growing tenant never had half of the pool");
  if (r.files_in_both > 0)
    report->Fail(fmt::format("tenants: {} memfds held objects of both", r.files_in_both));
  report->Gate(GateKind::kExact, "tenants_files_in_both", static_cast<double>(r.files_in_both),
               GateOp::kAtMost, 0);
  report->Gate(GateKind::kTimed, "tenants_half_ms", r.half_ms < 0 ? std::nan("") : r.half_ms,
               GateOp::kAtMost, kHalfMsMax);
}

void ReportEvents(const EventCost& cost, Report* report) {
  report->Print(fmt::format(
      "events: Reserve and Publish without a value, events on {:.2f} us, off {:.2f} us, on / off "
      "{:.2f} over {} rounds; {} published, {} lost; {} Puts refused\n\n",
      cost.on_us, cost.off_us, cost.ratio, cost.rounds, cost.events, cost.lost, cost.refused));
  report->json()["events"] = {{"on_us", cost.on_us},    {"off_us", cost.off_us},
                              {"ratio", cost.ratio},    {"rounds", cost.rounds},
                              {"events", cost.events},  {"lost", cost.lost},
                              {"refused", cost.refused}};
  report->Gate(GateKind::kTimed, "put_events_on_vs_off", cost.ratio, GateOp::kAtMost,
               kEventsRatioMax);
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  const MemorySettings& settings = plan.flags.settings;
  report->Print(fmt::format(
      "ems-bench memory: pool {}, segments of {}, {} insertions into a full pool each, seed {}\n",
      FormatBytes(settings.pool_bytes), FormatBytes(settings.segment_bytes), settings.insertions,
      settings.seed));
  report->json()["settings"] = {{"pool_bytes", settings.pool_bytes},
                                {"segment_bytes", settings.segment_bytes},
                                {"insertions", settings.insertions},
                                {"seed", settings.seed}};
  terminal::ProgressBar bar({.label = "measuring",
                             .total = 1000 * (plan.scenarios.size() + (plan.tenants ? 1 : 0)),
                             .unit = "steps"});
  uint64_t before = 0;
  MemoryBench bench(settings, [&](double done) {
    bar.Update(before + static_cast<uint64_t>(1000 * done));
    return !Interrupted();
  });
  std::vector<MemoryResult> results;
  for (const MemoryScenario& scenario : plan.scenarios) {
    EMS_ASSIGN_OR_RETURN(MemoryResult result, bench.Run(scenario));
    results.push_back(std::move(result));
    before += 1000;
  }
  bar.Clear();
  PrintResults(results, report);
  for (const MemoryResult& result : results)
    report->json()["results"].push_back(ResultJson(result));
  if (plan.tenants) {
    EMS_ASSIGN_OR_RETURN(const TenantsResult tenants, bench.RunTenants(kLayerBlock));
    ReportTenants(tenants, report);
  }
  if (plan.events) {
    EMS_ASSIGN_OR_RETURN(const EventCost cost, MeasureEventCost(settings, kLayerBlock));
    ReportEvents(cost, report);
  }
  for (size_t i = 0; i < results.size(); ++i) JudgeResult(results[i], plan.scenarios[i], report);
  return OkStatus();
}

int RunMemory(const Flags& flags) {
  const Result<Plan> plan = MakePlan(flags);
  if (!plan.ok()) {
    fmt::print(stderr, "ems-bench memory: {}\n", Message(plan.status()));
    return kExitUsage;
  }
  Report report("memory", flags.json_path, flags.gates);
  CatchInterrupts();
  const Status status = MeasureAndReport(*plan, &report);
  if (!status.ok()) report.Fail(ToString(status));
  return report.Finish();
}

}  // namespace

void AddMemoryCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* memory = program->AddCommand(
      "memory", "Measure the payload share of a full pool and the time to allocate in it");
  memory->AddOption("--pool-bytes", &flags->pool_bytes, "Memory of the pool");
  memory->AddOption("--segment-bytes", &flags->segment_bytes,
                    "Memory of one segment (memfd); 0: as in the server");
  memory->AddOption("--huge-pages", &flags->huge_pages, "As in the server's configuration",
                    {.check = OneOf{{"try", "require", "off"}}});
  memory->AddOption("--insertions", &flags->settings.insertions,
                    "Objects stored into the full pool in each scenario",
                    {.check = InRange{100, 1'000'000'000}});
  memory->AddOption("--seed", &flags->settings.seed, "Of sizes and references");
  std::vector<std::string> names;
  for (const MemoryScenario& scenario : AllScenarios()) names.push_back(scenario.name);
  names.emplace_back(kTenants);
  names.emplace_back(kEvents);
  memory->AddOption("--only", &flags->only, "Scenarios to run",
                    {.check = OneOf{names}, .delimiter = ','});
  memory->AddOption("--json", &flags->json_path, "Write the figures to this file");
  memory->AddFlag("--quick", &flags->quick, "Seconds only: 5000 insertions a scenario");
  AddGateOption(memory, &flags->gates);
  memory->SetFooter(
      "Needs no cluster: the server's memory runs in this process. Objects of a catalog four "
      "times\n"
      "the pool are read, popular ones more often, and stored when they are missing; values are "
      "not\n"
      "written. `payload`: bytes of values / bytes of the pool. `ideal`: hits of an exact LRU of\n"
      "all bytes of the pool.\n"
      "Exit codes: 0 all went well; 1 an error or a failed gate; 2 usage.\n"
      "Examples:\n"
      "  ems-bench memory --gate\n"
      "  ems-bench memory --only mixed,shift --pool-bytes 4GiB --json memory.json");
  memory->SetRun([flags] { return RunMemory(*flags); });
}

}  // namespace ems::bench
