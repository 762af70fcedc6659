// mp-controller: reads the configuration, runs one Controller until a signal. Exit codes 0 / 1
// failed / 2 usage.
#include <unistd.h>

#include <chrono>
#include <string>

#include "common/config_text.h"
#include "common/daemon.h"
#include "common/daemon_arguments.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "common/metrics.h"
#include "common/metrics_table.h"
#include "common/process_metrics.h"
#include "mp_controller/controller.h"
#include "mp_controller/controller_metrics.h"
#include "proto/config.pb.h"

namespace ems::controller {
namespace {

constexpr std::chrono::seconds kStopMost{10};

constexpr const char* kAbout =
    "NAME\n"
    "  mp-controller - control plane of an elastic memory service (EMS) pool\n\n"
    "DESCRIPTION\n"
    "  Keeps the membership of the pool's servers (heartbeats and leases), decides which server "
    "owns\n"
    "  which of the 16384 slots, keeps the namespaces, and publishes both to servers and clients. "
    "It is\n"
    "  never on the data path: while it is down the pool serves with the last view.";

constexpr const char* kFooter =
    "FILES\n"
    "  <data_dir>/store                 RocksDB: cluster id, namespaces, nodes, term, views\n"
    "  <data_dir>/EMS_CONTROLLER_STORE  marks that the store has been made; its loss is then "
    "damage\n"
    "  One controller uses a data_dir at a time. Back the folder up while the controller is "
    "stopped.\n"
    "  <data_dir>/ETCD_*                of several controllers, whose store is in etcd: what this "
    "one\n"
    "                                   remembers of it\n\n"
    "SIGNALS\n"
    "  SIGTERM, SIGINT  stop in order; after 10 s without cleaning up. kill -9 loses nothing that "
    "was "
    "acknowledged.\n\n"
    "EXIT STATUS\n"
    "  0  stopped by a signal\n"
    "  1  failed: store damaged, lost or in use, address in use, disk or etcd refused; stopping "
    "took 10 s\n"
    "  2  usage or configuration: the message names file, line and key\n\n"
    "EXAMPLES\n"
    "  mp-controller --config /etc/ems/controller.yaml\n"
    "  mp-controller --set data_dir=/var/lib/ems/controller --set listen=0.0.0.0:7400\n"
    "  mp-controller --help-config\n"
    "  curl http://127.0.0.1:7401/readyz\n\n"
    "SEE ALSO\n"
    "  mp-server, emsctl";

int Serve(const ControllerOptions& options, const DaemonArguments& arguments) {
  // Before any thread is made, so that all of them leave these signals to it.
  const StopSignals signals;
  StopLimit limit("mp_controller", kStopMost);
  Controller controller(options);
  Status status = controller.Start();
  if (!status.ok()) return arguments.Fail(kDaemonFailed, Message(status));
  EMS_LOG(kInfo, "mp_controller", "serving address={} http={}", controller.address(),
          controller.http_address());
  arguments.Notify("READY=1");
  const std::string& ready_file = arguments.ready_file();
  if (!ready_file.empty()) {
    status = WriteReadyFile(
        ready_file, fmt::format("{{\"pid\":{}, \"address\":\"{}\", \"http\":\"{}\"}}", ::getpid(),
                                controller.address(), controller.http_address()));
    if (!status.ok()) return arguments.Fail(kDaemonFailed, Message(status));
  }
  int signal = 0;
  while (signal == 0) {
    signal = signals.Wait(std::chrono::seconds(1));
    status = controller.fault();
    if (signal == 0 && !status.ok()) return arguments.Fail(kDaemonFailed, Message(status));
  }
  EMS_LOG(kInfo, "mp_controller", "stopping signal={}", signal);
  arguments.Notify("STOPPING=1");
  limit.Begin();
  controller.Stop();
  if (!ready_file.empty()) ::unlink(ready_file.c_str());
  return kDaemonOk;
}

std::string TableOfMetrics() {
  MetricsRegistry registry;
  const controller::ControllerMetrics metrics(&registry);
  std::string text = registry.Render();
  AppendProcessMetrics(&text);
  return MetricsTable(text);
}

int Main(int argc, char** argv) {
  SkipLockOrderChecks();
  DaemonArguments arguments(
      {.program =
           {.name = "mp-controller", .about = kAbout, .version = EMS_VERSION, .footer = kFooter},
       .set_example = "listen=0.0.0.0:7400",
       .ready_file = "Written once serving: one JSON line with pid, address and http",
       .metrics = &TableOfMetrics});
  config::ControllerConfig config;
  if (const auto exit_code = arguments.Load({argv + 1, argv + argc}, &config)) return *exit_code;
  const Result<ControllerOptions> options = MakeOptions(config);
  if (!options.ok()) return arguments.Refuse(options.status());
  const auto problems = Problems({CheckFolder("data_dir", config.data_dir())});
  if (arguments.check_only()) return arguments.ShowConfig(config, problems);
  const Status logging =
      OpenLog(config.log_level(), config.log_format(), "mp_controller", problems);
  if (!logging.ok()) return arguments.Refuse(logging);
  EMS_LOG(kInfo, "mp_controller", "configuration {}", config::OneLine(config));
  return Serve(*options, arguments);
}

}  // namespace
}  // namespace ems::controller

int main(int argc, char** argv) { return ems::controller::Main(argc, argv); }
