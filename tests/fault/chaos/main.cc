// ems-chaos: breaks a cluster of its own in every way it knows, under load, and checks what clients
// saw.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/logging.h"
#include "tests/fault/chaos/chaos_run.h"

int main(int argc, char** argv) {
  ems::testing::ChaosOptions options;
  options.seed = std::random_device()();
  double minutes = 1;
  bool quiet = false;
  ems::Command program(
      {.name = "ems-chaos",
       .about = "Break links, disks and processes of a cluster under load, in rounds, and check "
                "that every read is explained by what clients wrote",
       .footer = "Exit codes: 0 every guarantee held; 1 one was broken; 2 usage.\n"
                 "Example: ems-chaos --minutes 60\n"
                 "Example: ems-chaos --seed 7 --minutes 5"});
  program.AddOption(
      "--seed", &options.seed,
      "Repeats the faults and calls of an earlier run; without it a new one is chosen "
      "and printed",
      {.show_default = false});
  program.AddOption("--minutes", &minutes, "For how long rounds begin",
                    {.check = ems::InRange{0.0, 10000.0}});
  program.AddFlag("--quiet", &quiet, "Do not list the faults");
  if (const auto exit_code = program.Parse({argv + 1, argv + argc})) return *exit_code;
  (void)ems::log::Init("error");
  options.time = std::chrono::duration_cast<ems::Duration>(
      std::chrono::duration<double, std::ratio<60>>(minutes));
  const auto say = [](const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  if (!quiet) options.on_event = say;
  const std::string repeat = fmt::format("ems-chaos --seed {} --minutes {}", options.seed, minutes);
  say(fmt::format("seed {}", options.seed));
  const auto report = ems::testing::RunChaos(options);
  if (!report.ok()) {
    std::fprintf(stderr, "%s: %s\n", repeat.c_str(), ems::ToString(report.status()).c_str());
    return 1;
  }
  for (const std::string& text : report->broken) say("BROKEN " + text);
  if (!report->broken.empty()) say(report->logs + "repeat: " + repeat);
  say(report->ToText());
  return report->broken.empty() ? 0 : 1;
}
