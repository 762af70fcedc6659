#include "bench/harness/bench_command.h"

#include <fmt/format.h>

#include "bench/harness/interrupt.h"

namespace ems::bench {

GateChoice::operator GateSet() const {
  if (word.empty()) return GateSet::kNone;
  return word == "exact" ? GateSet::kExact : GateSet::kAll;
}

void AddCommonOptions(Command* command, CommonFlags* flags, const CommandHelp& help) {
  command->AddOption("--json", &flags->json_path, "Write the figures to this file");
  command->AddFlag("--quick", &flags->quick, help.quick);
  command->AddOption(
      "--gate", &flags->gates.word,
      "Check the targets; exit 1 if a gate fails. exact: counts, bytes and hit rates, which "
      "hold on any machine; all, or nothing: times and rates as well, on an idle machine",
      {.check = OneOf{{"exact", "all"}}, .value_if_bare = "all"});
  if (help.has_plot)
    command->AddOption("--plot", &flags->plot, "No longer: bench/plot.py draws the file of --json");
  std::string footer =
      fmt::format("{}{}Exit codes: 0 all went well; 1 {}; 2 usage.\nExamples:", help.about,
                  help.about.empty() ? "" : "\n", help.failures);
  for (const std::string& example : help.examples) footer += "\n  ems-bench " + example;
  command->SetFooter(footer);
}

void AddControllerOption(Command* command, std::string* controller) {
  command->AddOption("--controller", controller, "host:port of the controller",
                     {.environment = "EMS_CONTROLLER"});
}

void AddClusterOptions(Command* command, ClusterFlags* flags) {
  AddControllerOption(command, &flags->controller);
  command->AddOption("--shm-token", &flags->shm_token,
                     "Shown to servers of this host that ask for one (shm.token_file)",
                     {.environment = "EMS_SHM_TOKEN"});
}

int RefuseUsage(const std::string& command, const Status& why) {
  fmt::print(stderr, "ems-bench {}: {}\n", command, Message(why));
  return kExitUsage;
}

int RunReported(const std::string& command, const CommonFlags& flags,
                const std::function<Status(Report*)>& work) {
  if (!flags.plot.empty())
    return RefuseUsage(command, Error(StatusCode::kInvalidArgument,
                                      "--plot is gone: run bench/plot.py FIGURES.json {} on the "
                                      "file that --json FIGURES.json writes",
                                      flags.plot));
  CatchInterrupts();
  Report report(command, flags.json_path, flags.gates);
  const Status status = work(&report);
  if (!status.ok()) report.Fail(ToString(status));
  return report.Finish();
}

}  // namespace ems::bench
