// emsctl: watches and changes an EMS cluster, and moves single objects. Commands are in
// *_commands.cc; this file has the global options and the exit codes.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/cluster_id.h"
#include "common/command_line.h"
#include "common/logging.h"
#include "tools/emsctl/context.h"
#include "tools/emsctl/output.h"

namespace {

constexpr const char* kHelp =
    "emsctl watches and changes an EMS cluster, stores and loads single objects, and keeps "
    "models.\n"
    "\n"
    "Results go to standard output, as tables or with --json as one JSON document; complaints go\n"
    "to standard error and say what to do, with --json as one document a line:\n"
    "{\"error\": {\"code\": …, \"message\": …, \"advice\": …}}. Global options may stand before "
    "or\n"
    "behind the command.";

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 failed, or something is wrong; 2 usage; 3 what was asked for is not\n"
    "there; 4 controller or server cannot be reached, or did not answer in time.\n"
    "\n"
    "Examples:\n"
    "  emsctl status                                   is all well, and if not, what to do\n"
    "  emsctl doctor                                   what of this host and the cluster is wrong\n"
    "  emsctl events --since 1h                        what has happened to the cluster\n"
    "  emsctl top                                      what servers and namespaces do now\n"
    "  emsctl --controller 10.0.0.1:7400 node list     the servers and their memory\n"
    "  emsctl namespace create chat --dram-quota 64GiB\n"
    "  emsctl --cluster 3f9a12c407be5d61 node delete g a change of this cluster, and of no other\n"
    "  emsctl --namespace chat put greeting hello.txt  store a file\n"
    "  echo hello | emsctl put greeting -              store standard input\n"
    "  emsctl get greeting copy.txt                    written whole or not at all\n"
    "  emsctl rm -- -odd-key                           a key that starts with a dash\n"
    "  emsctl model create qwen/7b@v1 s3://models/qwen a version of a model, from its source\n"
    "  emsctl model prefetch qwen/7b --wait            into the servers' memory\n"
    "  emsctl rollout restart --command 'ssh {host} systemctl restart mp-server'\n"
    "  emsctl view accept-loss                         drop servers that will not come back\n"
    "\n"
    "`emsctl COMMAND --help` tells more.";

// Whether --cluster, if it is given, is the id of one, which commands belong to from now on.
bool MeansACluster(const ems::emsctl::Context& context) {
  if (context.cluster.empty()) return true;
  const auto cluster = ems::ParseCluster(context.cluster);
  if (cluster.has_value() && context.joined->Join(*cluster).ok()) return true;
  (void)ems::emsctl::ComplainOfUsage(
      context, fmt::format("--cluster {}: 16 hexadecimal digits, as `emsctl status` shows them",
                           ems::Printable(context.cluster)));
  return false;
}

void AddCompletion(ems::Command* program) {
  ems::Command* completion =
      program->AddCommand("completion", "Print a script that completes commands in a shell");
  completion->SetFooter(
      "  source <(emsctl completion bash)\n"
      "  emsctl completion bash > ~/.local/share/bash-completion/completions/emsctl\n"
      "zsh takes it after `autoload -U bashcompinit && bashcompinit`.");
  completion->AddCommand("bash", "For bash")->SetRun([program] {
    return ems::emsctl::Print(program->BashCompletion()) ? ems::emsctl::kExitOk
                                                         : ems::emsctl::kExitFailed;
  });
}

// Whether --json is among them, before what follows "--".
bool SaysJson(const std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  return std::find(arguments.begin(), end, "--json") != end;
}

}  // namespace

int main(int argc, char** argv) {
  ems::emsctl::Context context;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  ems::Command program({.name = "emsctl",
                        .about = kHelp,
                        .version = EMS_VERSION,
                        .footer = kFooter,
                        .options_after_command = true,
                        .on_usage_error = [&](const std::string& text) {
                          if (!SaysJson(arguments)) return (void)std::fputs(text.c_str(), stderr);
                          context.json = true;  // nothing has been parsed
                          (void)ems::emsctl::ComplainOfUsage(context, text);
                        }});
  program.AddOption("--controller", &context.controller,
                    "host:port of the controller; of several, separated by commas",
                    {.environment = "EMS_CONTROLLER"});
  program.AddOption("--cluster", &context.cluster,
                    "Id of the cluster that is meant, as `emsctl status` shows it: the controller "
                    "of another one refuses everything. Without it, whichever answers is meant",
                    {.environment = "EMS_CLUSTER"});
  program.AddOption("--namespace", &context.name_space,
                    "Namespace of put, get, exists, rm and stat", {.environment = "EMS_NAMESPACE"});
  program.AddOption("--timeout", &context.timeout_seconds, "Seconds that each call may take",
                    {.check = ems::InRange{0.001, 3600.0}});
  program.AddFlag("--json", &context.json, "One JSON document instead of tables");
  ems::emsctl::AddClusterCommands(&program, &context);
  ems::emsctl::AddDoctorCommand(&program, &context);
  ems::emsctl::AddEventsCommand(&program, &context);
  ems::emsctl::AddNamespaceCommands(&program, &context);
  ems::emsctl::AddModelCommands(&program, &context);
  ems::emsctl::AddObjectCommands(&program, &context);
  ems::emsctl::AddListCommand(&program, &context);
  ems::emsctl::AddRolloutCommands(&program, &context);
  ems::emsctl::AddTopCommand(&program, &context);
  AddCompletion(&program);
  if (const auto exit_code = program.Parse(arguments)) return *exit_code;
  if (!MeansACluster(context)) return ems::emsctl::kExitUsage;
  if (!ems::log::Init("error").ok()) return ems::emsctl::kExitFailed;
  return program.Run();
}
