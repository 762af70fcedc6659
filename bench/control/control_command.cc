#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/control/control_bench.h"
#include "bench/harness/bench_command.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr double kReachMsMax = 1000;
constexpr double kBlockedMsMax = 50;
constexpr double kMovedMax = 1.1;
constexpr uint64_t kDeltaBytesMax = 200;
// Servers, and the load of the fullest one over the mean.
constexpr std::pair<size_t, double> kSizes[] = {{100, 1.02}, {1000, 1.06}};

struct Flags : CommonFlags {
  ControlSettings settings;
};

Result<ControlSettings> MakePlan(const Flags& flags) {
  ControlSettings settings = flags.settings;
  if (flags.quick) {
    settings.servers = std::min<size_t>(settings.servers, 30);
    settings.watchers = std::min<size_t>(settings.watchers, 200);
    settings.rounds = 1;
  }
  settings.connections = std::min(settings.connections, settings.watchers);
  return settings;
}

void ReportPlacement(Report* report) {
  FigureTable table;
  for (const auto& [servers, load_max] : kSizes) {
    const PlacementFigures f = MeasurePlacementOf(servers);
    table.AddRow();
    table.Count("servers", "servers", servers);
    table.Figure("max/mean", "max_over_mean", f.max_over_mean, 3);
    table.Figure("join moves", "join_moved", f.join_moved, 3);
    table.Figure("leave moves", "leave_moved", f.leave_moved, 3);
    table.Count("join bytes", "join_bytes", f.join_bytes);
    table.Count("leave bytes", "leave_bytes", f.leave_bytes);
    table.Count("one slot bytes", "slot_bytes", f.slot_bytes);
    table.Count("whole view bytes", "whole_bytes", f.whole_bytes);
    const auto name = [&, n = servers](const char* what) { return fmt::format("{}_{}", what, n); };
    report->AtMost(kExact, name("max_over_mean"), f.max_over_mean, load_max);
    report->AtMost(kExact, name("movement"), std::max(f.join_moved, f.leave_moved), kMovedMax);
    if (servers < 1000) continue;  // a change moves more slots where each has more
    report->AtMost(kExact, name("delta_bytes"),
                   std::max({f.join_bytes, f.leave_bytes, f.slot_bytes}), kDeltaBytesMax);
  }
  report->json()["placement"] = table.json();
  report->Print(
      fmt::format("\nslots of equal servers, and what one change takes\n{}\n", table.Render()));
}

void ReportChanges(const ControlSettings& settings, const ControlResult& result, Report* report) {
  FigureTable table;
  double reach_ms = 0;
  for (const ChangeResult& change : result.changes) {
    table.AddRow();
    table.Label("change", "change", change.change);
    table.Figure("view ms", "published_ms", Millis(change.decided), 1);
    table.Figure("watchers p50 ms", "p50_ms", change.arrivals.latency.p50_ms(), 1);
    table.Figure("p99", "p99_ms", change.arrivals.latency.p99_ms(), 1);
    table.Figure("all", "all_ms", change.arrivals.latency.max_ms(), 1);
    table.Count("bytes", "bytes", change.arrivals.bytes_max);
    reach_ms = std::max(reach_ms, change.arrivals.latency.max_ms());
  }
  const double cpu_s = Seconds(result.cpu) / static_cast<double>(result.changes.size());
  report->json()["changes"] = table.json();
  report->json()["control"] = {{"servers_took_s", Seconds(result.servers_took)},
                               {"watchers_took_s", Seconds(result.watchers_took)},
                               {"loop_blocked_ms", Millis(result.blocked)},
                               {"loop_blocked_at_start_ms", Millis(result.blocked_at_start)},
                               {"cpu_s_per_change", cpu_s},
                               {"failed_heartbeats", result.failed_beats},
                               {"peak_rss_bytes", result.peak_rss_bytes}};
  report->Print(fmt::format(
      "\n{} servers, {} watchers: from the call that asks for a change until watchers have it\n{}\n"
      "{:.1f} s until all servers were in the view, {:.1f} s until each watcher had one\n"
      "loop: {:.1f} ms at most until a task had its turn, {:.1f} ms while servers and watchers "
      "came\n"
      "CPU of controller, servers and watchers together: {:.2f} s a change; peak RSS {}\n",
      settings.servers, settings.watchers, table.Render(), Seconds(result.servers_took),
      Seconds(result.watchers_took), Millis(result.blocked), Millis(result.blocked_at_start), cpu_s,
      FormatBytes(result.peak_rss_bytes)));
  report->MustBeZero("failed_heartbeats", result.failed_beats);
  report->AtMost(kTimed, "reach_all_ms", reach_ms, kReachMsMax);
  report->AtMost(kTimed, "loop_blocked_ms", Millis(result.blocked), kBlockedMsMax);
}

Status MeasureAndReport(const ControlSettings& settings, Report* report) {
  report->json()["settings"] = {{"servers", settings.servers},
                                {"watchers", settings.watchers},
                                {"connections", settings.connections},
                                {"rounds", settings.rounds}};
  ReportPlacement(report);
  EMS_ASSIGN_OR_RETURN(const ControlResult result, RunControlBench(settings));
  ReportChanges(settings, result, report);
  return OkStatus();
}

}  // namespace

void AddControlCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  Command* command = program->AddCommand(
      "control", "Measure the control plane at size: a change on its way to all who watch");
  ControlSettings& settings = flags->settings;
  command->AddOption("--servers", &settings.servers, "Simulated servers",
                     {.check = InRange{1, 4095}});
  command->AddOption("--watchers", &settings.watchers, "Watch streams",
                     {.check = InRange{1, 100'000}});
  command->AddOption("--connections", &settings.connections, "That they share",
                     {.check = InRange{1, 1000}});
  command->AddOption("--rounds", &settings.rounds, "Joins, and as many leaves",
                     {.check = InRange{1, 1000}});
  AddCommonOptions(
      command, flags.get(),
      {.quick = "Few servers and watchers; the figures of placement stay",
       .about = "Needs no cluster: a controller in this process with its store, loop and gRPC "
                "service,\nsimulated servers that register and send heartbeats, and watchers on "
                "streams of their own.\nPlacement is computed for 100 and 1,000 servers, whatever "
                "the flags say.",
       .failures = "an error or a failed gate",
       .examples = {"control --gate",
                    "control --servers 200 --watchers 1000 --json control.json"}});
  command->SetRun(
      [=] { return RunPlanned("control", *flags, MakePlan(*flags), MeasureAndReport); });
}

}  // namespace ems::bench
