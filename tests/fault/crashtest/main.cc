// ems-crashtest: kills a server under load, or cuts its power, again and again, and checks its
// guarantees.
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/logging.h"
#include "tests/fault/crashtest/crash_run.h"
#include "tests/fault/crashtest/power_run.h"

namespace {

// The exit code.
int Tell(const std::vector<std::string>& broken, const std::string& repeat) {
  for (const std::string& text : broken) std::printf("BROKEN %s\n", text.c_str());
  if (!broken.empty()) std::printf("repeat: ems-crashtest %s\n", repeat.c_str());
  std::fflush(stdout);
  return broken.empty() ? 0 : 1;
}

int Fail(const ems::Status& status, const std::string& repeat) {
  std::fprintf(stderr, "ems-crashtest %s: %s\n", repeat.c_str(), ems::ToString(status).c_str());
  return 1;
}

int Kill(const ems::testing::CrashOptions& options, const std::string& repeat) {
  const auto report = ems::testing::RunCrashes(options);
  if (!report.ok()) return Fail(report.status(), repeat);
  std::printf("%s\n",
              fmt::format("{} kills, {} of them at fail points; {} calls; {} reads checked after "
                          "starts, {} hits; {} held-back values written; {} guarantees broken",
                          report->kills, report->inside, report->calls, report->checks,
                          report->hits, report->quiet_writes, report->broken.size())
                  .c_str());
  return Tell(report->broken, repeat);
}

int CutPower(const ems::testing::PowerOptions& options, const std::string& repeat) {
  const auto report = ems::testing::RunPowerCuts(options);
  if (!report.ok()) return Fail(report.status(), repeat);
  std::printf("%s\n",
              fmt::format("{} cuts, {} of servers and {} of the controller; {} joins; {} calls, {} "
                          "changes of namespaces; {} changes were not synced, {} lost; {} reads "
                          "checked after starts, {} hits; {} held-back values written; {} "
                          "guarantees broken",
                          report->cuts, report->servers, report->controllers, report->joins,
                          report->calls, report->namespaces, report->unsynced, report->lost,
                          report->checks, report->hits, report->quiet_writes, report->broken.size())
                  .c_str());
  std::printf("%s", report->logs.c_str());
  return Tell(report->broken, repeat);
}

}  // namespace

int main(int argc, char** argv) {
  ems::testing::CrashOptions options;
  options.kills = 200;
  options.seed = std::random_device()();
  ems::Command program(
      {.name = "ems-crashtest",
       .about = "Kill a server under load, or cut its power, again and again, and check its "
                "guarantees",
       .footer =
           "Exit codes: 0 every guarantee held; 1 one was broken; 2 usage.\n"
           "Example: ems-crashtest --kills 20 --seed 7\n"
           "Example: ems-crashtest --power --kills 5 --runs 100\n"
           "Example: ems-crashtest --power --joins --kills 10\n"
           "Example: ems-crashtest --power --kills 5 --runs 10 --lost-syncs '*/index/*.log'"});
  program.AddOption("--kills", &options.kills, "How often, in each run",
                    {.check = ems::InRange{1, 100000}, .show_default = false});
  program.AddOption("--seed", &options.seed,
                    "Repeats an earlier run; without it a new one is chosen and printed",
                    {.show_default = false});
  int runs = 1;
  program.AddOption("--runs", &runs,
                    "Runs, each with daemons and folders of its own: the seed, the next one, ...",
                    {.check = ems::InRange{1, 100000}});
  program.AddOption("--keys", &options.keys, "Keys under load",
                    {.check = ems::InRange{10, 100000}, .show_default = false});
  program.AddFlag("--tight", &options.tight,
                  "Too little SSD for all values: regions are reclaimed all the time");
  bool each_place = false;
  program.AddFlag("--each-place", &each_place, "At every fail point in turn, instead of --kills");
  program.AddFlag("!--outside-only", &options.fail_points,
                  "Kill from outside alone, not at fail points");
  bool power = false;
  program.AddFlag("--power", &power,
                  "Cut the power instead, of the server, the controller or both: what was not "
                  "synced is lost, or any part of it");
  bool joins = false;
  program.AddFlag(
      "--joins", &joins,
      "With --power: two servers, one of which is away at times and comes back when its "
      "slots are the other one's. Nothing older may be found; values may be gone");
  std::string lost_syncs;
  program.AddOption("--lost-syncs", &lost_syncs,
                    "With --power: syncs of the paths that this glob takes do nothing. Shows what "
                    "they are for, and that they would be missed",
                    {.show_default = false});
  if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
  if (each_place) {
    options.places = ems::testing::CrashPlaces();
    options.kills = static_cast<int>(options.places.size());
  }
  (void)ems::log::Init("warn");
  int failed = 0;
  for (int i = 0; i < runs; ++i, ++options.seed) {
    const std::string repeat = fmt::format(
        "{}{}--kills {} --seed {} --keys {}{}", power ? "--power " : "", joins ? "--joins " : "",
        options.kills, options.seed, options.keys, options.tight ? " --tight" : "");
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    std::fflush(stdout);
    failed += power ? CutPower({.cuts = options.kills,
                                .seed = options.seed,
                                .keys = options.keys,
                                .tight = options.tight,
                                .joins = joins,
                                .lost_syncs = lost_syncs},
                               repeat)
                    : Kill(options, repeat);
  }
  if (runs > 1) std::printf("%d runs of %d, %d of them failed\n", runs, options.kills, failed);
  return failed == 0 ? 0 : 1;
}
