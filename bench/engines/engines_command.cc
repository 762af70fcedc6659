// Each connector is measured by a script in its engine's own language, which starts a cluster of
// its own and writes a document: {"figures": {name: number}, "gates": [{"name", "op": ">=" or "<=",
// "bound", "kind": "exact" or "timed"}]}, the value of a gate being the figure of its name.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/bench_command.h"
#include "bench/harness/child_process.h"
#include "bench/harness/commands.h"
#include "bench/harness/figure_table.h"
#include "bench/harness/figures.h"
#include "bench/harness/interrupt.h"
#include "bench/harness/scratch_folder.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLookEveryMs = 200;  // whether Ctrl-C has come

struct Connector {
  const char* name;
  const char* script;  // runs with --json FILE, and --quick
};
constexpr std::array<Connector, 3> kConnectors = {{{"lmcache", "python_engines.py"},
                                                   {"llama_cpp", "llama_cpp.py"},
                                                   {"python", "python_context.py"}}};

struct Flags : CommonFlags {
  std::vector<std::string> connectors;
  std::string scripts;
  std::string python = "/usr/bin/python3";
};

std::string BinaryFolder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
}

// Where scripts find daemons and package when nobody has said so: beside this program.
void OfferDefaults() {
  const std::string folder = BinaryFolder();
  // Before any thread is started.
  ::setenv("EMS_BIN", folder.c_str(), 0);                      // NOLINT(concurrency-mt-unsafe)
  ::setenv("PYTHONPATH", (folder + "/../python").c_str(), 0);  // NOLINT(concurrency-mt-unsafe)
}

// Its exit code. Ctrl-C is passed on, so that the script stops its cluster.
int Wait(pid_t pid) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg): glibc has no function for it everywhere
  const fabric::Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended = {.fd = process.get(), .events = POLLIN, .revents = 0};
  bool passed_on = false;
  while (process.valid() && ::poll(&ended, 1, kLookEveryMs) <= 0) {
    if (Interrupted() && !passed_on) {
      ::kill(pid, SIGINT);
      passed_on = true;
    }
  }
  return Reap(pid);
}

// What the script of a connector has measured. Errors: kInternal  it failed, with the end of its
// output
Result<Json> Measure(const Connector& connector, const Flags& flags, const std::string& folder) {
  const std::string script = flags.scripts + "/" + connector.script;
  const std::string json_path = fmt::format("{}/{}.json", folder, connector.name);
  const std::string log = fmt::format("{}/{}.log", folder, connector.name);
  std::vector<std::string> arguments = {flags.python, "-B", script, "--json", json_path};
  if (flags.quick) arguments.emplace_back("--quick");
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, log));
  const int code = Wait(pid);
  if (code != 0)
    return Error(StatusCode::kInternal, "{} ended with {}:\n{}", script, code, LogEnd(log));
  Json measured = Json::parse(ReadFile(json_path), nullptr, false);
  if (!measured.is_object() || !measured["figures"].is_object()) {
    return Error(StatusCode::kInternal, "{} wrote no figures", script);
  }
  return measured;
}

void Show(const Connector& connector, const Json& measured, Report* report) {
  FigureTable table;
  const Json& figures = measured["figures"];
  for (const auto& [name, value] : figures.items()) {
    table.AddRow();
    table.Label(connector.name, "", name);
    table.Cell("figure", value.is_number() ? Fixed(value.get<double>(), 2) : "-");
  }
  report->Print(table.Render() + "\n");
  report->json()[connector.name] = figures;
  for (const Json& gate : measured.value("gates", Json::array())) {
    const std::string name = gate.value("name", "");
    const bool at_most = gate.value("op", "") == "<=";
    const double missing = std::nan("");  // it fails
    report->Gate(gate.value("kind", "") == "exact" ? kExact : kTimed, name,
                 figures.value(name, missing), at_most ? GateOp::kAtMost : GateOp::kAtLeast,
                 gate.value("bound", missing));
  }
}

Status MeasureAll(const Flags& flags, Report* report) {
  OfferDefaults();
  EMS_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::Make());
  for (const Connector& connector : kConnectors) {
    const auto wanted = std::find(flags.connectors.begin(), flags.connectors.end(), connector.name);
    if (wanted == flags.connectors.end() || Interrupted()) continue;
    const Result<Json> measured = Measure(connector, flags, scratch->path());
    if (measured.ok()) {
      Show(connector, *measured, report);
    } else {
      report->Fail(fmt::format("{}: {}", connector.name, Message(measured.status())));
    }
  }
  return Interrupted() ? Interruption() : OkStatus();
}

}  // namespace

void AddEnginesCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  flags->scripts = EMS_BENCH_SCRIPTS;
  for (const Connector& connector : kConnectors) flags->connectors.emplace_back(connector.name);
  Command* engines = program->AddCommand(
      "engines", "What the connectors in engines cost, on clusters of their own");
  engines->AddOption("--connectors", &flags->connectors, "Which to measure",
                     {.check = OneOf{flags->connectors}, .delimiter = ','});
  engines->AddOption("--scripts", &flags->scripts, "Folder of the scripts",
                     {.check = ExistingFolder{}});
  engines->AddOption("--python", &flags->python, "Interpreter that the package ems is built for",
                     {.check = ExistingFile{}});
  AddCommonOptions(
      engines, flags.get(),
      {.quick = "Seconds only",
       .about = "lmcache: batches of 32 x 256 KiB through ems.lmcache beside memcpy, and how long "
                "submitting\ntakes, also with the servers stopped. llama_cpp: time to the first "
                "token of "
                "node-llama-cpp\nbeside cold. python: look-ups and submissions of a Python "
                "engine.\nEMS_BIN (daemons) and PYTHONPATH (package) are those "
                "beside this program when not set.",
       .examples = {"engines --gate"}});
  engines->SetRun([=] {
    return RunReported("engines", *flags, [&](Report* to) { return MeasureAll(*flags, to); });
  });
}

}  // namespace ems::bench
