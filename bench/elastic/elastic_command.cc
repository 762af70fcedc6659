#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/elastic/elastic_bench.h"
#include "bench/elastic/elastic_report.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/trace/trace_source.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr uint64_t kBlockBytesMax = kMiB;
constexpr uint64_t kDramMin = 64 * kMiB;
constexpr uint64_t kDramMax = 4 * kGiB;

struct Flags : CommonFlags {
  TraceChoice trace;
  ElasticSettings settings;
  std::string block_bytes = "8KiB";
  double capacity_percent = 25;
  double quiet_s = 5, window_s = 7;
  std::string only;
};

// Flags as the run needs them.
struct Plan {
  ElasticSettings settings;
  std::string trace_name;
  Trace trace;
  std::vector<Scenario> scenarios;  // the undisturbed one first
};

uint64_t RequestsIn(double seconds, uint64_t rate) {
  return std::max<uint64_t>(
      1, static_cast<uint64_t>(std::llround(seconds * static_cast<double>(rate))));
}

// Errors: kInvalidArgument and the like  what the user has to change
Result<Plan> MakePlan(Flags flags) {
  Plan plan;
  plan.scenarios = {Scenario::kUndisturbed};
  for (const Scenario scenario : {Scenario::kJoin, Scenario::kStop, Scenario::kKill})
    if (flags.only.empty() || flags.only == NameOf(scenario)) plan.scenarios.push_back(scenario);
  ElasticSettings& settings = plan.settings = flags.settings;
  if (flags.quick) {
    settings.warm_requests = std::min<uint64_t>(settings.warm_requests, 500);
    settings.lease_ms = std::min<uint32_t>(settings.lease_ms, 1000);
    flags.quiet_s = std::min(flags.quiet_s, 0.5);
    flags.window_s = std::min(flags.window_s, 1.5);
  }
  settings.quiet_requests = RequestsIn(flags.quiet_s, settings.rate);
  settings.window_requests = RequestsIn(flags.window_s, settings.rate);
  EMS_ASSIGN_OR_RETURN(settings.block_bytes, ParseBytes(flags.block_bytes));
  if (settings.block_bytes == 0 || settings.block_bytes > kBlockBytesMax)
    return Error(StatusCode::kInvalidArgument, "--block-bytes {}: 1 to {} are allowed",
                 flags.block_bytes, FormatBytes(kBlockBytesMax));
  const uint64_t needed = settings.warm_requests + settings.timed_requests(Scenario::kUndisturbed);
  flags.trace.requests = needed;
  EMS_ASSIGN_OR_RETURN(plan.trace, TakeTrace(&flags.trace));
  if (plan.trace.requests.size() < needed)
    return Error(StatusCode::kInvalidArgument,
                 "{} has {} requests, {} are needed: lower --warm, --rate, --quiet or --window",
                 flags.trace.path, plan.trace.requests.size(), needed);
  plan.trace_name = flags.trace.path;
  const double blocks =
      static_cast<double>(plan.trace.unique_blocks) * flags.capacity_percent / 100;
  settings.capacity_bytes =
      std::max<uint64_t>(static_cast<uint64_t>(blocks), settings.servers) * settings.block_bytes;
  // With one server less the others hold all of it, beside what they keep of slots that moved.
  settings.dram_bytes = std::max(kDramMin, settings.replicas * settings.capacity_bytes);
  if (settings.dram_bytes > kDramMax)
    return Error(StatusCode::kInvalidArgument,
                 "{:g} % of the unique blocks are {}: lower --capacity-percent or --block-bytes",
                 flags.capacity_percent, FormatBytes(settings.capacity_bytes));
  return plan;
}

void Announce(const Plan& plan, Report* report) {
  const ElasticSettings& s = plan.settings;
  report->Print(
      fmt::format("ems-bench elastic: {}\n"
                  "{} servers of {}, capacity {} in all, blocks of {} on {} of them, lease {} ms, "
                  "{} concurrent\n"
                  "{} requests as fast as possible, then {} a second: {} before the first change\n",
                  plan.trace_name, s.servers, FormatBytes(s.dram_bytes),
                  FormatBytes(s.capacity_bytes), FormatBytes(s.block_bytes), s.replicas, s.lease_ms,
                  s.concurrency, s.warm_requests, s.rate, s.quiet_requests));
  report->json()["trace"] = plan.trace_name;
  report->json()["settings"] = {{"servers", s.servers},
                                {"dram_bytes", s.dram_bytes},
                                {"capacity_bytes", s.capacity_bytes},
                                {"block_bytes", s.block_bytes},
                                {"replicas", s.replicas},
                                {"rate", s.rate},
                                {"warm_requests", s.warm_requests},
                                {"quiet_requests", s.quiet_requests},
                                {"window_requests", s.window_requests},
                                {"concurrency", s.concurrency},
                                {"lease_ms", s.lease_ms}};
}

Status MeasureAndReport(const Plan& plan, Report* report) {
  Announce(plan, report);
  std::vector<ElasticRun> runs;
  for (const Scenario scenario : plan.scenarios) {
    auto run = RunElastic(scenario, plan.trace, plan.settings);
    if (!run.ok()) return Prefixed(run.status(), NameOf(scenario));
    runs.push_back(*std::move(run));
  }
  ReportElastic(runs, plan.trace, plan.settings, report);
  return OkStatus();
}

}  // namespace

void AddElasticCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "elastic", "Measure what joins, stops, kills and returns of servers under load cost");
  ElasticSettings& settings = flags->settings;
  AddTraceOptions(command, &flags->trace);
  command->AddOption("--only", &flags->only, "One scenario beside the undisturbed run",
                     {.check = OneOf{{"join", "stop", "kill"}}});
  command->AddOption("--servers", &settings.servers, "That a run starts with",
                     {.check = InRange{2, 16}});
  command->AddOption("--replicas", &settings.replicas,
                     "Servers that each object is on: above 1 a kill is to cost no hit",
                     {.check = InRange{1, 3}});
  command->AddOption("--capacity-percent", &flags->capacity_percent,
                     "What all servers hold together, as a share of the unique blocks",
                     {.check = InRange{0.01, 100.0}});
  command->AddOption("--block-bytes", &flags->block_bytes, "Payload that stands for 512 tokens");
  command->AddOption("--warm", &settings.warm_requests, "Requests in front, as fast as possible",
                     {.check = InRange{1, 1'000'000}});
  command->AddOption("--rate", &settings.rate, "Requests a second", {.check = InRange{1, 100'000}});
  command->AddOption("--quiet", &flags->quiet_s, "Seconds at this rate before the first change",
                     {.check = InRange{0.1, 3600.0}});
  command->AddOption("--window", &flags->window_s, "Seconds after each change",
                     {.check = InRange{0.1, 3600.0}});
  command->AddOption("--concurrency", &settings.concurrency, "Concurrent requests",
                     {.check = InRange{1, 64}});
  command->AddOption("--lease-ms", &settings.lease_ms,
                     "After which a killed server loses its slots; heartbeats are five times as "
                     "frequent",
                     {.check = InRange{250, 600'000}});
  command->AddOption("--programs", &settings.programs,
                     "Folder of mp-controller and mp-server; beside this program by default");
  AddCommonOptions(
      command, flags.get(),
      {.quick = "Half a second before a change, 1.5 after each",
       .about =
           "Starts a controller and three servers of its own for each scenario: a fourth "
           "server joins;\none is stopped and comes back; one is killed and comes back. Beside "
           "it the same requests\non a cluster that is left alone, and an ideal LRU that loses "
           "the same blocks at the\nsame moment. DRAM only: what a server has goes with it.",
       .examples = {"elastic --gate", "elastic --quick --only join",
                    "elastic --rate 80 --window 60 --lease-ms 5000 --json elastic.json"}});
  command->SetRun(
      [=] { return RunPlanned("elastic", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
