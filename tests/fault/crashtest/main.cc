// ems-crashtest: kills a server under load, again and again, and checks its promises.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <random>

#include "common/logging.h"
#include "tests/fault/crashtest/crash_run.h"

int main(int argc, char** argv) {
  CLI::App app("Kill a server under load, again and again, and check what it promised",
               "ems-crashtest");
  ems::testing::CrashOptions options;
  options.kills = 200;
  options.seed = std::random_device()();
  app.add_option("--kills", options.kills, "How often")->check(CLI::Range(1, 100000));
  app.add_option("--seed", options.seed,
                 "Repeats an earlier run; without it a new one is chosen and printed");
  app.add_option("--keys", options.keys, "Keys under load")->check(CLI::Range(10, 100000));
  app.add_flag("--tight", options.tight,
               "Too little SSD for all values: regions are given up all the time");
  app.add_flag("!--outside-only", options.fail_points,
               "Kill from outside alone, not at fail points");
  app.footer(
      "Exit codes: 0 every promise held; 1 one was broken; 2 usage.\nExample: ems-crashtest "
      "--kills 20 --seed 7");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
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
      "hits; %zu promises broken\n",
      report->kills, report->inside, static_cast<unsigned long long>(report->calls),
      static_cast<unsigned long long>(report->checks),
      static_cast<unsigned long long>(report->hits), report->broken.size());
  for (const std::string& text : report->broken) std::printf("BROKEN %s\n", text.c_str());
  return report->broken.empty() ? 0 : 1;
}
