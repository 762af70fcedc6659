// mp-controller: reads the configuration, runs one Controller until a signal. Exit codes 0 / 1
// failed / 2 usage.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/daemon.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "mp_controller/controller.h"
#include "proto/config.pb.h"

namespace ems::controller {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

constexpr const char* kAbout =
    "NAME\n"
    "  mp-controller - control plane of an elastic memory service (EMS) pool\n\n"
    "DESCRIPTION\n"
    "  Keeps the membership of the pool's servers (heartbeats and leases), decides which server "
    "owns\n"
    "  which of the 4096 slots, keeps the namespaces, and publishes both to servers and clients. "
    "It is\n"
    "  never on the data path: while it is down the pool goes on serving with the last view.";

constexpr const char* kFooter =
    "FILES\n"
    "  <data_dir>/store                 RocksDB: namespaces, node ids, term, epoch, last 16 views\n"
    "  <data_dir>/EMS_CONTROLLER_STORE  marks that the store has been made; its loss is then "
    "damage\n"
    "  One controller uses a data_dir at a time. Back the folder up while the controller is "
    "stopped.\n\n"
    "SIGNALS\n"
    "  SIGTERM, SIGINT  stop in order within 10 s. kill -9 loses nothing that was acknowledged.\n\n"
    "EXIT STATUS\n"
    "  0  stopped by a signal\n"
    "  1  failed: store damaged or in use, address in use, disk refused\n"
    "  2  usage or configuration: the message names file, line and key\n\n"
    "EXAMPLES\n"
    "  mp-controller --config /etc/ems/controller.yaml\n"
    "  mp-controller --set data_dir=/var/lib/ems/controller --set listen=0.0.0.0:7400\n"
    "  mp-controller --help-config\n"
    "  curl http://127.0.0.1:7401/readyz\n\n"
    "SEE ALSO\n"
    "  mp-server, emsctl";

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string ready_file;
  bool help_config = false;
  bool check_config = false;
};

// Runs `serve` unless the arguments say otherwise; returns the exit code.
int ParseArguments(int argc, char** argv, Arguments* arguments, bool* serve) {
  CLI::App app(kAbout, "mp-controller");
  app.footer(kFooter);
  app.set_version_flag("--version", "mp-controller " EMS_VERSION);
  app.add_option("--config", arguments->config, "YAML file; see --help-config")->type_name("FILE");
  app.add_option("--set", arguments->overrides, "One option, after the file; may be repeated")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--ready-file", arguments->ready_file,
                 "Written once serving: one JSON line with pid, address and http")
      ->type_name("PATH");
  app.add_flag("--help-config", arguments->help_config, "List every option and exit");
  app.add_flag("--check-config", arguments->check_config,
               "Print the resulting configuration and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    *serve = false;
    return app.exit(e) == 0 ? kExitOk : kExitUsage;
  }
  if (arguments->help_config) {
    *serve = false;
    std::fputs(config::Describe(config::ControllerConfig()).c_str(), stdout);
  }
  return kExitOk;
}

int Fail(int code, const Status& status) {
  std::fputs(fmt::format("mp-controller: {}\n", Message(status)).c_str(), stderr);
  return code;
}

int Serve(const Arguments& arguments, const StopSignals& signals) {
  config::ControllerConfig config;
  Status status = config::Load(arguments.config, arguments.overrides, &config);
  if (!status.ok()) return Fail(kExitUsage, status);
  const Result<ControllerOptions> options = MakeOptions(config);
  if (!options.ok()) return Fail(kExitUsage, options.status());
  const auto problems = Problems({CheckFolder("data_dir", config.data_dir())});
  if (arguments.check_config) {
    std::puts(config::OneLine(config).c_str());
    PrintWarnings("mp-controller", problems);
    return kExitOk;
  }
  status = log::Init(config.log_level());
  if (status.ok()) status = LogWarnings("mp_controller", problems);
  if (!status.ok()) return Fail(kExitUsage, status);
  EMS_LOG(kInfo, "mp_controller", "configuration {}", config::OneLine(config));

  Controller controller(*options);
  status = controller.Start();
  if (!status.ok()) return Fail(kExitFailed, status);
  EMS_LOG(kInfo, "mp_controller", "serving address={} http={}", controller.address(),
          controller.http_address());
  if (!arguments.ready_file.empty()) {
    status =
        WriteReadyFile(arguments.ready_file,
                       fmt::format("{{\"pid\":{}, \"address\":\"{}\", \"http\":\"{}\"}}",
                                   ::getpid(), controller.address(), controller.http_address()));
    if (!status.ok()) return Fail(kExitFailed, status);
  }
  int signal = 0;
  while (signal == 0) signal = signals.Wait(std::chrono::hours(1));
  EMS_LOG(kInfo, "mp_controller", "stopping signal={}", signal);
  controller.Stop();
  if (!arguments.ready_file.empty()) ::unlink(arguments.ready_file.c_str());
  return kExitOk;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  bool serve = true;
  const int code = ParseArguments(argc, argv, &arguments, &serve);
  if (!serve) return code;
  // Before any thread is made, so that all of them leave these signals to it.
  const StopSignals signals;
  return Serve(arguments, signals);
}

}  // namespace
}  // namespace ems::controller

int main(int argc, char** argv) { return ems::controller::Main(argc, argv); }
