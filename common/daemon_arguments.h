#pragma once
// The command line that all daemons have in common, from the arguments of main to a configuration
// that has been loaded and a log that is open.
//
//   DaemonArguments arguments({.name = "mp-server", …});
//   config::ServerConfig config;
//   if (const auto code = arguments.Load({argv + 1, argv + argc}, &config)) return *code;
//   if (const Status s = CheckConfig(config); !s.ok()) return arguments.Refuse(s);
//   const auto problems = CheckMachine(config);
//   if (arguments.check_only()) return arguments.ShowConfig(config, problems);
//   const Status logging =
//       OpenLog(config.log_level(), config.log_format(), "mp_server", problems);
//   if (!logging.ok()) return arguments.Refuse(logging);
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/command_line.h"
#include "common/status.h"

namespace google::protobuf {
class Message;
}

namespace ems {

// Exit codes of a daemon.
inline constexpr int kDaemonOk = 0;
inline constexpr int kDaemonFailed = 1;
inline constexpr int kDaemonUsage = 2;  // or a configuration that is refused

// The texts of a daemon's --help.
struct DaemonHelp {
  Program program;
  std::string set_example;  // for --set: "dram.bytes=8GiB"
  std::string ready_file;   // what --ready-file writes, and when
  // The answer to --help-metrics (MetricsTable); empty: there is no such option.
  std::function<std::string()> metrics{};
};

// Threading: one thread (main's).
class DaemonArguments final {
 public:
  explicit DaemonArguments(const DaemonHelp& help);

  // For options of this daemon alone, before Load().
  Command* program() { return &program_; }

  // Parses `arguments`, those behind the program's name, and fills `config` from the file and the
  // overrides that they name. The exit code when the daemon has nothing more to do: after --help,
  // --version, --help-config and --help-metrics, or an error, which has been printed.
  std::optional<int> Load(std::vector<std::string> arguments, google::protobuf::Message* config);

  // --check-config: print the configuration and exit.
  bool check_only() const { return check_only_; }
  const std::string& ready_file() const { return ready_file_; }  // empty: none
  // Tells the service manager that started this daemon, if one did (common/service_notify.h).
  // A word that does not reach it is a warning in the log.
  void Notify(std::string_view state) const;
  const std::string& notify_socket() const { return notify_socket_; }  // empty: none did

  // The answer to --check-config: YAML that loads again; `problems` are warnings
  // (common/machine_check.h). Returns the exit code.
  int ShowConfig(const google::protobuf::Message& config,
                 const std::vector<Status>& problems) const;
  // Prints "NAME: TEXT" to standard error and returns `exit_code`.
  int Fail(int exit_code, std::string_view text) const;
  // Fail() for a configuration that the daemon does not take.
  int Refuse(const Status& status) const { return Fail(kDaemonUsage, Message(status)); }

 private:
  const std::string name_;
  std::string config_file_;
  std::vector<std::string> overrides_;
  std::string ready_file_;
  std::string notify_socket_;
  const std::function<std::string()> metrics_;
  bool help_config_ = false;
  bool help_metrics_ = false;
  bool check_only_ = false;
  Command program_;
};

// Begins logging at `level` in `format` (log::Init) and logs `problems` (common/machine_check.h) as
// `component`. Errors: kInvalidArgument  a level or format that is none, or the problem with which
// nothing can start
Status OpenLog(std::string_view level, std::string_view format, std::string_view component,
               const std::vector<Status>& problems);

}  // namespace ems
