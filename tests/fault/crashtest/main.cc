// ems-crashtest: kills a server under load, again and again, and checks its guarantees.
#include <cstdio>
#include <random>

#include "common/command_line.h"
#include "common/logging.h"
#include "tests/fault/crashtest/crash_run.h"

int main(int argc, char** argv) {
  ems::testing::CrashOptions options;
  options.kills = 200;
  options.seed = std::random_device()();
  ems::Command program(
      {.name = "ems-crashtest",
       .about = "Kill a server under load, again and again, and check its guarantees",
       .footer = "Exit codes: 0 every guarantee held; 1 one was broken; 2 usage.\n"
                 "Example: ems-crashtest --kills 20 --seed 7"});
  program.AddOption("--kills", &options.kills, "How often",
                    {.check = ems::InRange{1, 100000}, .show_default = false});
  program.AddOption("--seed", &options.seed,
                    "Repeats an earlier run; without it a new one is chosen and printed",
                    {.show_default = false});
  program.AddOption("--keys", &options.keys, "Keys under load",
                    {.check = ems::InRange{10, 100000}, .show_default = false});
  program.AddFlag("--tight", &options.tight,
                  "Too little SSD for all values: regions are reclaimed all the time");
  bool each_place = false;
  program.AddFlag("--each-place", &each_place, "At every fail point in turn, instead of --kills");
  program.AddFlag("!--outside-only", &options.fail_points,
                  "Kill from outside alone, not at fail points");
  if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
  if (each_place) {
    options.places = ems::testing::CrashPlaces();
    options.kills = static_cast<int>(options.places.size());
  }
  (void)ems::log::Init("warn");
  std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  const auto report = ems::testing::RunCrashes(options);
  if (!report.ok()) {
    std::fprintf(stderr, "ems-crashtest: %s\n", ems::ToString(report.status()).c_str());
    return 1;
  }
  std::printf(
      "%d kills, %d of them at fail points; %llu calls; %llu reads checked after starts, %llu "
      "hits; %zu guarantees broken\n",
      report->kills, report->inside, static_cast<unsigned long long>(report->calls),
      static_cast<unsigned long long>(report->checks),
      static_cast<unsigned long long>(report->hits), report->broken.size());
  for (const std::string& text : report->broken) std::printf("BROKEN %s\n", text.c_str());
  return report->broken.empty() ? 0 : 1;
}
