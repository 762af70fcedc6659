// ems-simulate: a cluster in virtual time, many times over; says which rule broke, and how.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/logging.h"
#include "tests/simulation/simulation.h"

namespace ems::simulation {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  uint64_t seeds = 100;
  uint64_t first = 1;
  int nodes = 4;
  int faults = 8;
  std::string broken;
  bool forwards = false;
  bool migrates = false;
  std::string log = "off";
};

void Report(const Options& options, const Outcome& outcome) {
  fmt::print("seed {}: {:.3f} s: {}\n", options.seed,
             std::chrono::duration<double>(outcome.at).count(), outcome.violation);
  for (const Fault& fault : Minimise(options, MakeFaults(options)))
    fmt::print("  {}\n", fault.ToText());
}

int Run(const Flags& flags) {
  if (const Status log = log::Init(flags.log); !log.ok()) {
    fmt::print(stderr, "ems-simulate: --log: {}\n", Message(log));
    return kExitUsage;
  }
  Options options{.servers = flags.nodes,
                  .faults = flags.faults,
                  .rules = {},
                  .forwards = flags.forwards || flags.migrates,
                  .migrates = flags.migrates};
  if (!flags.broken.empty() && !Break(flags.broken, &options.rules)) {
    fmt::print(stderr, "ems-simulate: --broken {}: there is no such rule; there are {}\n",
               flags.broken, fmt::join(BreakableRules(), ", "));
    return kExitUsage;
  }
  uint64_t served = 0;
  for (uint64_t i = 0; i < flags.seeds; ++i) {
    options.seed = flags.first + i;
    const Outcome outcome = Simulate(options, MakeFaults(options));
    served += outcome.served;
    if (outcome.violation.empty()) continue;
    Report(options, outcome);
    return kExitFailed;
  }
  fmt::print("{} seeds from {}: every rule held, {} calls of clients were served\n", flags.seeds,
             flags.first, served);
  return kExitOk;
}

}  // namespace
}  // namespace ems::simulation

int main(int argc, char** argv) {
  ems::simulation::Flags flags;
  ems::Command program({.name = "ems-simulate",
                        .about = "Runs the control plane in virtual time under faults.",
                        .footer =
                            "Exit codes: 0 every rule held, 1 one broke (its seed and faults are "
                            "printed), 2 usage"});
  program.AddOption("--seeds", &flags.seeds, "How many runs");
  program.AddOption("--first", &flags.first, "Seed of the first one");
  program.AddOption("--nodes", &flags.nodes, "Servers", {.check = ems::InRange{1, 64}});
  program.AddOption("--faults", &flags.faults, "Faults a run", {.check = ems::InRange{0, 64}});
  program.AddFlag("--forwards", &flags.forwards, "Servers ask who had their slots before");
  program.AddFlag("--migrates", &flags.migrates, "They also bring all of it by themselves");
  program.AddOption("--broken", &flags.broken, "Leave out this rule");
  program.AddOption("--log", &flags.log, "What daemons would log: debug, info, warn, error, off");
  program.SetRun([&flags] { return ems::simulation::Run(flags); });
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto exit_code = program.Parse(arguments)) return *exit_code;
  return program.Run();
}
