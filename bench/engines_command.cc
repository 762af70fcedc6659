#include "bench/engines_command.h"

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
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/child_process.h"
#include "bench/interrupt.h"
#include "bench/report.h"
#include "common/command_line.h"
#include "fabric/socket.h"
#include "tools/terminal.h"

namespace ems::bench {
namespace {

using Json = nlohmann::ordered_json;
using terminal::Align;
using terminal::Table;

constexpr int kLookEveryMs = 200;  // whether Ctrl-C has come
constexpr size_t kLogBytesShown = 2000;

struct Seat {
  const char* name;
  const char* script;  // runs with --json FILE, and --quick
};
constexpr std::array<Seat, 2> kSeats = {
    {{"lmcache", "python_engines.py"}, {"llama_cpp", "llama_cpp.py"}}};

struct Flags {
  std::vector<std::string> seats;
  std::string scripts;
  std::string python = "/usr/bin/python3";
  std::string json_path;
  bool quick = false;
  GateChoice gates;
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

// A folder for what scripts write. Threading: one thread.
class ScratchFolder final {
 public:
  ScratchFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "ems-engines-XXXXXX").string();
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
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

// What the script of a seat has measured. Errors: kInternal  it failed, with the end of its output
Result<Json> Measure(const Seat& seat, const Flags& flags, const std::string& folder) {
  const std::string script = flags.scripts + "/" + seat.script;
  const std::string json_path = fmt::format("{}/{}.json", folder, seat.name);
  const std::string log = fmt::format("{}/{}.log", folder, seat.name);
  std::vector<std::string> arguments = {flags.python, "-B", script, "--json", json_path};
  if (flags.quick) arguments.emplace_back("--quick");
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, log));
  const int code = Wait(pid);
  if (code != 0) {
    std::string text = TextOf(log);
    if (text.size() > kLogBytesShown) text.erase(0, text.size() - kLogBytesShown);
    return Error(StatusCode::kInternal, "{} ended with {}:\n{}", script, code, text);
  }
  Json measured = Json::parse(TextOf(json_path), nullptr, false);
  if (!measured.is_object() || !measured["figures"].is_object()) {
    return Error(StatusCode::kInternal, "{} wrote no figures", script);
  }
  return measured;
}

void Show(const Seat& seat, const Json& measured, Report* report) {
  Table table({{seat.name, Align::kLeft}, {"figure"}});
  const Json& figures = measured["figures"];
  for (const auto& [name, value] : figures.items()) {
    table.AddRow({name, value.is_number() ? fmt::format("{:.2f}", value.get<double>()) : "-"});
  }
  report->Print(table.Render() + "\n");
  report->json()[seat.name] = figures;
  for (const Json& gate : measured.value("gates", Json::array())) {
    const std::string name = gate.value("name", "");
    const bool at_most = gate.value("op", "") == "<=";
    const double missing = std::nan("");  // it fails
    report->Gate(GateKind::kTimed, name, figures.value(name, missing),
                 at_most ? GateOp::kAtMost : GateOp::kAtLeast, gate.value("bound", missing));
  }
}

int RunEngines(const Flags& flags) {
  Report report("engines", flags.json_path, flags.gates);
  CatchInterrupts();
  OfferDefaults();
  const ScratchFolder scratch;
  if (scratch.path().empty()) {
    report.Fail("no folder for what the scripts write can be made");
    return report.Finish();
  }
  for (const Seat& seat : kSeats) {
    const auto wanted = std::find(flags.seats.begin(), flags.seats.end(), seat.name);
    if (wanted == flags.seats.end() || Interrupted()) continue;
    const Result<Json> measured = Measure(seat, flags, scratch.path());
    if (measured.ok()) {
      Show(seat, *measured, &report);
    } else {
      report.Fail(fmt::format("{}: {}", seat.name, Message(measured.status())));
    }
  }
  if (Interrupted()) report.Fail("interrupted");
  return report.Finish();
}

}  // namespace

void AddEnginesCommand(Command* program) {
  const auto flags = std::make_shared<Flags>();
  flags->scripts = EMS_BENCH_SCRIPTS;
  for (const Seat& seat : kSeats) flags->seats.emplace_back(seat.name);
  Command* engines =
      program->AddCommand("engines", "What the seats in engines cost, on clusters of their own");
  engines->AddOption("--seats", &flags->seats, "Which to measure",
                     {.check = OneOf{flags->seats}, .delimiter = ','});
  engines->AddOption("--scripts", &flags->scripts, "Folder of the scripts",
                     {.check = ExistingFolder{}});
  engines->AddOption("--python", &flags->python, "Interpreter that the package ems is built for",
                     {.check = ExistingFile{}});
  engines->AddOption("--json", &flags->json_path, "Write the figures to this file");
  engines->AddFlag("--quick", &flags->quick, "Seconds only");
  AddGateOption(engines, &flags->gates);
  engines->SetFooter(
      "lmcache: batches of 32 x 256 KiB through ems.lmcache beside memcpy, and how long "
      "submitting\n"
      "takes, also with the servers stopped.\n"
      "EMS_BIN (daemons) and PYTHONPATH (package) are those beside this program when not set.\n"
      "Exit codes: 0 all went well; 1 an error, a wrong byte or a failed gate; 2 usage.\n"
      "Example:\n"
      "  ems-bench engines --gate");
  engines->SetRun([flags] { return RunEngines(*flags); });
}

}  // namespace ems::bench
