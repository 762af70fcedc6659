#include "common/daemon_arguments.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "common/config.h"
#include "common/config_text.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "common/service_notify.h"

namespace ems {

DaemonArguments::DaemonArguments(const DaemonHelp& help)
    : name_(help.program.name), metrics_(help.metrics), program_(help.program) {
  program_.AddOption("--config", &config_file_, "YAML configuration file");
  program_.AddOption(
      "--set", &overrides_,
      fmt::format("Override one option, e.g. --set {}; may be repeated", help.set_example));
  program_.AddOption("--ready-file", &ready_file_, help.ready_file);
  program_.AddOption("--notify-socket", &notify_socket_,
                     "Datagram socket that is told READY=1 and STOPPING=1; systemd names it",
                     {.environment = "NOTIFY_SOCKET"});
  program_.AddFlag("--help-config", &help_config_,
                   "List every option with default, unit and range, and exit");
  if (metrics_) {
    program_.AddFlag("--help-metrics", &help_metrics_,
                     "List every metric of /metrics with labels and meaning, and exit");
  }
  program_.AddFlag("--check-config", &check_only_,
                   "Print the resulting configuration, as a file that --config takes, and exit");
}

std::optional<int> DaemonArguments::Load(std::vector<std::string> arguments,
                                         google::protobuf::Message* config) {
  if (const auto exit_code = program_.Parse(std::move(arguments))) return exit_code;
  if (help_config_) {
    std::fputs(config::Describe(*config).c_str(), stdout);
    return kDaemonOk;
  }
  if (help_metrics_) {
    std::fputs(metrics_().c_str(), stdout);
    return kDaemonOk;
  }
  const Status loaded = config::Load(config_file_, overrides_, config);
  if (!loaded.ok()) return Refuse(loaded);
  return std::nullopt;
}

int DaemonArguments::ShowConfig(const google::protobuf::Message& config,
                                const std::vector<Status>& problems) const {
  std::fputs(config::Yaml(config).c_str(), stdout);
  PrintWarnings(name_, problems);
  return kDaemonOk;
}

void DaemonArguments::Notify(std::string_view state) const {
  const Status told = NotifyService(notify_socket_, state);
  if (!told.ok()) EMS_LOG(kWarn, "daemon", "{}", Message(told));
}

int DaemonArguments::Fail(int exit_code, std::string_view text) const {
  std::fputs(fmt::format("{}: {}\n", name_, text).c_str(), stderr);
  return exit_code;
}

Status OpenLog(std::string_view level, std::string_view format, std::string_view component,
               const std::vector<Status>& problems) {
  EMS_RETURN_IF_ERROR(log::Init(level, format));
  return LogWarnings(component, problems);
}

}  // namespace ems
