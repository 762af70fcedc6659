#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/memory/event_cost.h"
#include "bench/memory/hazard_cost.h"
#include "bench/memory/large_pool.h"
#include "bench/memory/lookup_cost.h"
#include "bench/memory/memory_bench.h"
#include "mp_server/memory/segment_pool.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUniformEfficiency = 0.95;
constexpr double kMixedEfficiency = 0.90;
constexpr double kReserveP99UsMax = 2;
constexpr double kHalfMsMax = 5000;
// One layer of 128 tokens of a model with latent attention, and all its 61 layers.
constexpr uint64_t kLayerBlock = 147'456;
constexpr uint64_t kWholeBlock = 8'994'816;
constexpr uint64_t kSegmentMin = 2 * kMiB;
constexpr uint64_t kSimulatedMin = 64 * kMiB;
constexpr uint64_t kSimulatedMax = uint64_t{1} << 44;
constexpr char kTenants[] = "tenants";
constexpr char kEvents[] = "events";
constexpr char kLookups[] = "lookups";
constexpr char kSize[] = "size";
constexpr char kHazards[] = "hazards";
constexpr double kEventsRatioMax = 1.25;
constexpr double kRoundMsMax = 1;
constexpr double kMadeRatioMin = 0.1;
constexpr double kHazardsRatioMax = 1.3;
constexpr uint64_t kHazardSessions = 250;

std::vector<MemoryScenario> AllScenarios() {
  const MemorySizes small = {4 * kKiB, 256 * kKiB};
  const MemorySizes large = {256 * kKiB, 16 * kMiB};
  return {{"uniform_147KB", {{kLayerBlock, kLayerBlock}}, kUniformEfficiency, 0.6, 3},
          {"uniform_9MB", {{kWholeBlock, kWholeBlock}}, kUniformEfficiency, 0.6, 3},
          {"mixed", {{4 * kKiB, 16 * kMiB}}, kMixedEfficiency, -1, 20},
          {"shift", {small, large, small}, kMixedEfficiency, 0.5, 35}};
}

struct Flags : CommonFlags {
  std::string pool_bytes = "1GiB";
  std::string segment_bytes = "0";
  std::string huge_pages = "try";
  std::string simulated_bytes = "1TiB";
  std::vector<std::string> only;
  MemorySettings settings{.insertions = 200'000};
  bool Wants(const std::string& part) const {
    return only.empty() || std::find(only.begin(), only.end(), part) != only.end();
  }
};

// Flags as the run needs them.
struct Plan {
  Flags flags;
  LargePoolSettings large;
  std::vector<MemoryScenario> scenarios;
};

Result<Plan> MakePlan(Flags flags) {
  Plan plan;
  plan.large.sessions = 256;
  if (flags.quick) {
    flags.settings.insertions = std::min<uint64_t>(flags.settings.insertions, 5000);
    flags.settings.samples = 100;
    plan.large.sessions = 8;
  }
  MemorySettings& settings = flags.settings;
  EMS_ASSIGN_OR_RETURN(plan.large.pool_bytes, ParseBytes(flags.simulated_bytes));
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
  if (plan.large.pool_bytes < kSimulatedMin || plan.large.pool_bytes > kSimulatedMax) {
    return Error(StatusCode::kInvalidArgument, "--simulated-bytes {} has to be from {} to {}",
                 flags.simulated_bytes, FormatBytes(kSimulatedMin), FormatBytes(kSimulatedMax));
  }
  plan.large.made_bytes = settings.pool_bytes;
  plan.large.huge_pages = settings.huge_pages;
  for (MemoryScenario& scenario : AllScenarios())
    if (flags.Wants(scenario.name)) plan.scenarios.push_back(std::move(scenario));
  plan.flags = std::move(flags);
  return plan;
}

Json LatencyUsJson(const LatencyRecorder& latencies) {
  return {{"count", latencies.count()},
          {"p50_us", latencies.QuantileUs(0.5)},
          {"p99_us", latencies.QuantileUs(0.99)},
          {"p999_us", latencies.QuantileUs(0.999)},
          {"max_us", latencies.max_ms() * 1000}};
}

// A share, as percent in the table.
void AddShare(const char* title, const char* key, double share, FigureTable* table) {
  table->Figure(title, key, share, Fixed(100 * share, 2));
}

void ReportResults(const std::vector<MemoryResult>& results, Report* report) {
  if (results.empty()) return;
  FigureTable table;
  for (const MemoryResult& r : results) {
    table.AddRow();
    table.Label("scenario", "scenario", r.name);
    AddShare("payload % min", "", r.efficiency_min, &table);
    AddShare("mean", "", r.efficiency_mean, &table);
    AddShare("end", "", r.efficiency_end, &table);
    table.Field("efficiency", {{"min", r.efficiency_min},
                               {"mean", r.efficiency_mean},
                               {"end", r.efficiency_end},
                               {"samples", r.samples}});
    table.Field("reserve", LatencyUsJson(r.reserve));
    table.Figure("Reserve p50 us", "", r.reserve.QuantileUs(0.5), 2);
    table.Figure("p99", "", r.reserve.QuantileUs(0.99), 2);
    table.Figure("p99.9", "", r.reserve.QuantileUs(0.999), 2);
    table.Figure("max", "", r.reserve.max_ms() * 1000, 0);
    table.Field("reserve_and_publish", LatencyUsJson(r.put));
    table.Figure("+Publish p99", "", r.put.QuantileUs(0.99), 2);
    table.Field("insertions", r.insertions);
    table.Figure("evicted/put", "evictions_per_insertion", r.evictions_per_insertion(), 2);
    table.Count("refused", "refused", r.refused);
    AddShare("hit %", "hit_rate", r.hit_rate(r.hits), &table);
    AddShare("ideal %", "ideal_hit_rate", r.hit_rate(r.ideal_hits), &table);
    AddShare("hit % of bytes", "byte_hit_rate", r.byte_hit_rate(r.hits), &table);
    AddShare("ideal", "ideal_byte_hit_rate", r.byte_hit_rate(r.ideal_hits), &table);
  }
  report->json()["results"] = table.json();
  report->Print(fmt::format("\n{}\n", table.Render()));
}

// Not a number where there was nothing to time.
double P99Us(const LatencyRecorder& latencies) {
  return latencies.count() == 0 ? std::nan("") : latencies.QuantileUs(0.99);
}

void JudgeResult(const MemoryResult& r, const MemoryScenario& scenario, Report* report) {
  if (r.refused > 0)
    report->Fail(
        fmt::format("{}: {} insertions found no room in a pool in which nothing is held: {}",
                    r.name, r.refused, r.refusal));
  report->AtLeast(kExact, r.name + "_efficiency_min", r.efficiency_min, scenario.efficiency_min);
  report->AtMost(kTimed, r.name + "_reserve_p99_us", P99Us(r.reserve), kReserveP99UsMax);
  report->AtMost(kTimed, r.name + "_reserve_and_publish_p99_us", P99Us(r.put),
                 scenario.put_p99_us_max);
  report->AtMost(kExact, r.name + "_hit_points_below_ideal",
                 100 * (r.hit_rate(r.ideal_hits) - r.hit_rate(r.hits)), scenario.hit_points_below);
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
      r.files_in_both, r.reserve.QuantileUs(0.5), r.reserve.QuantileUs(0.99),
      r.reserve.max_ms() * 1000));
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
  report->AtMost(kExact, "tenants_files_in_both", r.files_in_both, 0);
  report->AtMost(kTimed, "tenants_half_ms", r.half_ms < 0 ? std::nan("") : r.half_ms, kHalfMsMax);
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
  report->AtMost(kTimed, "put_events_on_vs_off", cost.ratio, kEventsRatioMax);
}

void ReportLookups(const LookupCost& cost, Report* report) {
  report->Print(fmt::format(
      "lookups: MultiExists of {} keys in DRAM, without the network: {:.1f} ns a key, {:.1f} ns in "
      "the fastest of {} frames\n\n",
      cost.keys, cost.ns, cost.ns_min, cost.frames));
  report->json()["lookups"] = {
      {"keys", cost.keys}, {"frames", cost.frames}, {"ns", cost.ns}, {"ns_min", cost.ns_min}};
}

void ReportLargePool(uint64_t pool_bytes, const LargePoolCost& cost, Report* report) {
  report->Print(fmt::format(
      "size: a pool of {} has {} segments of {} MiB\n"
      "  pages are made at {:.2f} GB/s, all of it in {:.0f} s; one thread writes {:.2f} GB/s\n"
      "  a look at {} clients that have {} segments each: {:.3f} ms\n\n",
      FormatBytes(pool_bytes), cost.segments, cost.segment_bytes / kMiB, cost.made_gbps,
      cost.start_s(), cost.memset_gbps, cost.sessions, cost.segments_given, cost.round_ms));
  report->json()["size"] = {{"pool_bytes", pool_bytes},
                            {"segments", cost.segments},
                            {"segment_bytes", cost.segment_bytes},
                            {"made_bytes", cost.made_bytes},
                            {"made_gbps", cost.made_gbps},
                            {"memset_gbps", cost.memset_gbps},
                            {"start_s", cost.start_s()},
                            {"sessions", cost.sessions},
                            {"segments_given", cost.segments_given},
                            {"round_ms", cost.round_ms}};
  report->AtMost(kExact, "size_segments", cost.segments, server::SegmentPool::kSegmentsMax);
  report->AtLeast(kTimed, "size_made_vs_memset", cost.made_gbps / cost.memset_gbps, kMadeRatioMin);
  report->AtMost(kTimed, "size_round_ms", cost.round_ms, kRoundMsMax);
}

void ReportHazards(const HazardCost& cost, Report* report) {
  report->Print(fmt::format(
      "hazards: Reserve and Publish beside {} clients that hold {} views each: p50 {:.2f} us, mean "
      "{:.2f}, p99 {:.1f}; without them {:.2f}, {:.2f}, {:.1f}; p50 with / without {:.2f}; {} Puts "
      "refused\n\n",
      cost.sessions, cost.hazards, cost.with.QuantileUs(0.5), 1e3 * cost.with.avg_ms(),
      cost.with.QuantileUs(0.99), cost.without.QuantileUs(0.5), 1e3 * cost.without.avg_ms(),
      cost.without.QuantileUs(0.99), cost.p50_ratio(), cost.refused));
  report->json()["hazards"] = {
      {"sessions", cost.sessions},        {"hazards", cost.hazards},
      {"with", LatencyUsJson(cost.with)}, {"without", LatencyUsJson(cost.without)},
      {"p50_ratio", cost.p50_ratio()},    {"refused", cost.refused}};
  report->AtMost(kTimed, "put_p50_hazards_vs_none", cost.p50_ratio(), kHazardsRatioMax);
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
  terminal::ProgressBar bar(
      {.label = "measuring",
       .total = 1000 * (plan.scenarios.size() + (plan.flags.Wants(kTenants) ? 1 : 0)),
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
  ReportResults(results, report);
  if (plan.flags.Wants(kTenants)) {
    EMS_ASSIGN_OR_RETURN(const TenantsResult tenants, bench.RunTenants(kLayerBlock));
    ReportTenants(tenants, report);
  }
  if (plan.flags.Wants(kEvents)) {
    EMS_ASSIGN_OR_RETURN(const EventCost cost, MeasureEventCost(settings, kLayerBlock));
    ReportEvents(cost, report);
  }
  if (plan.flags.Wants(kLookups)) {
    EMS_ASSIGN_OR_RETURN(const LookupCost cost, MeasureLookupCost(settings));
    ReportLookups(cost, report);
  }
  if (plan.flags.Wants(kSize)) {
    EMS_ASSIGN_OR_RETURN(const LargePoolCost cost, MeasureLargePool(plan.large));
    ReportLargePool(plan.large.pool_bytes, cost, report);
  }
  if (plan.flags.Wants(kHazards)) {
    EMS_ASSIGN_OR_RETURN(const HazardCost cost,
                         MeasureHazardCost(settings, kHazardSessions, kLayerBlock));
    ReportHazards(cost, report);
  }
  for (size_t i = 0; i < results.size(); ++i) JudgeResult(results[i], plan.scenarios[i], report);
  return OkStatus();
}

}  // namespace

void AddMemoryCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* memory = program->AddCommand(
      "memory", "Measure the payload share of a full pool and the time to allocate in it");
  memory->AddOption("--pool-bytes", &flags->pool_bytes, "Memory of the pool");
  memory->AddOption("--segment-bytes", &flags->segment_bytes,
                    "Memory of one segment (memfd); 0: as in the server");
  memory->AddOption("--simulated-bytes", &flags->simulated_bytes,
                    "Of the pool of `size`, which has no pages");
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
  names.emplace_back(kLookups);
  names.emplace_back(kSize);
  names.emplace_back(kHazards);
  memory->AddOption("--only", &flags->only, "Scenarios to run",
                    {.check = OneOf{names}, .delimiter = ','});
  AddCommonOptions(
      memory, flags.get(),
      {.quick = "Seconds only: 5000 insertions a scenario",
       .about =
           "Needs no cluster: the server's memory runs in this process. Objects of a catalog four "
           "times\nthe pool are read, popular ones more often, and stored when they are missing; "
           "values are not\nwritten. `payload`: bytes of values / bytes of the pool. `ideal`: hits "
           "of an exact LRU of\nall bytes of the pool.",
       .failures = "an error or a failed gate",
       .examples = {"memory --gate",
                    "memory --only mixed,shift --pool-bytes 4GiB --json memory.json"}});
  memory->SetRun([=] { return RunPlanned("memory", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
