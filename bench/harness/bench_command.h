#pragma once
// The parts that all commands of ems-bench share: options, the end of --help, and the way from
// flags over a report to an exit code.
//
//   struct Flags : ClusterFlags { … };
//   AddClusterOptions(store, flags.get());
//   …
//   AddCommonOptions(store, flags.get(), {.quick = "Seconds only", .examples = {"store --gate"}});
//   store->SetRun([=] { return RunPlanned("store", *flags, MakePlan(*flags), Measure); });
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "common/command_line.h"
#include "common/status.h"

namespace ems::bench {

// The argument of `--gate [exact|all]`; `--gate` alone is all.
struct GateChoice {
  std::string word;  // empty: the option was not given
  // NOLINTNEXTLINE(google-explicit-constructor): it is one, as the option says it
  operator GateSet() const;
};

struct CommonFlags {
  std::string json_path;
  bool quick = false;
  GateChoice gates;
  std::string plot;  // of a command that draws no longer: refused
};
// Of a command that measures a running cluster.
struct ClusterFlags : CommonFlags {
  std::string controller = "127.0.0.1:7400";
  std::string shm_token;
};

struct CommandHelp {
  std::string quick;       // what --quick does
  std::string about = {};  // whole lines
  std::string failures = "an error, a wrong byte or a failed gate";
  std::vector<std::string> examples = {};  // behind "ems-bench "
  bool has_plot = false;                   // bench/plot.py draws its figures
};
// --json, --quick, --gate, and what stands below the options. Owner of `flags`, here and below: the
// caller, until the arguments are parsed.
void AddCommonOptions(Command* command, CommonFlags* flags, const CommandHelp& help);
// --controller, and --shm-token of those that have local servers.
void AddControllerOption(Command* command, std::string* controller);
void AddClusterOptions(Command* command, ClusterFlags* flags);

// Says on standard error why a command cannot run as it was told to. Returns kExitUsage.
int RefuseUsage(const std::string& command, const Status& why);
// Runs a command's work: Ctrl-C ends it between two rounds, its error fails the report.
// Returns what Report::Finish does.
int RunReported(const std::string& command, const CommonFlags& flags,
                const std::function<Status(Report*)>& work);
// The same for flags that had to make sense first.
template <typename Plan>
int RunPlanned(const std::string& command, const CommonFlags& flags, const Result<Plan>& plan,
               Status (*work)(const Plan&, Report*)) {
  if (!plan.ok()) return RefuseUsage(command, plan.status());
  return RunReported(command, flags, [&](Report* report) { return work(*plan, report); });
}

}  // namespace ems::bench
