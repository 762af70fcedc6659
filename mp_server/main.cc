// mp-server: one node of the pool.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/config.h"
#include "common/daemon.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "mp_server/server.h"
#include "mp_server/server_options.h"
#include "proto/config.pb.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr std::chrono::seconds kStopPatience{5};

constexpr const char* kAbout =
    "mp-server: gives DRAM to the EMS pool and serves the objects that fall to it.\n\n"
    "It registers with the controller, owns a share of the 4096 slots in proportion to dram.bytes, "
    "and answers Put, Get,\n"
    "Exists and Remove on TCP and, when unix_path is set, on a Unix socket. Clients of the same "
    "machine map\n"
    "the pool read-only through that socket and read it themselves (shm.share).";

constexpr const char* kFooter = R"(
FILES
  data_dir/lock   held while the server runs; a second server on the same folder exits
  data_dir/view   the highest view ever installed

SIGNALS
  SIGTERM, SIGINT  gives up the slots, finishes requests in hand (5 s at most), exits 0

EXIT STATUS
  0 stopped in order    1 failed to start or to go on    2 usage or configuration

EXAMPLES
  mp-server --config /etc/ems/server.yaml
  mp-server --set name=a --set data_dir=/var/lib/ems/a --set dram.bytes=8GiB
  mp-server --help-config
)";

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string ready_file;
  bool help_config = false;
  bool check_config = false;
};

int Refuse(const ems::Status& status) {
  std::fprintf(stderr, "mp-server: %s\n", std::string(ems::Message(status)).c_str());
  return kUsage;
}

int Run(const Arguments& arguments, const ems::config::ServerConfig& config) {
  const ems::StopSignals signals;
  EMS_LOG(kInfo, "mp_server", "starting version={} {}", EMS_VERSION, ems::config::OneLine(config));
  auto server = ems::server::Server::Start(config);
  if (!server.ok()) {
    std::fprintf(stderr, "mp-server: %s\n", ems::ToString(server.status()).c_str());
    return server.status().code() == ems::StatusCode::kInvalidArgument ? kUsage : kFailed;
  }
  bool announced = arguments.ready_file.empty();
  while (signals.Wait(std::chrono::milliseconds(announced ? 1000 : 10)) == 0) {
    if (announced || !(*server)->Ready().ok()) continue;
    const nlohmann::json ready = {{"pid", ::getpid()},
                                  {"name", config.name()},
                                  {"address", (*server)->data_address()},
                                  {"unix", (*server)->unix_path()},
                                  {"http", (*server)->http_address()}};
    const ems::Status written = ems::WriteReadyFile(arguments.ready_file, ready.dump());
    if (!written.ok()) {
      std::fprintf(stderr, "mp-server: %s\n", ems::ToString(written).c_str());
      return kFailed;
    }
    announced = true;
  }
  EMS_LOG(kInfo, "mp_server", "stopping");
  (*server)->Stop(kStopPatience);
  server->reset();
  EMS_LOG(kInfo, "mp_server", "stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(kAbout, "mp-server");
  app.footer(kFooter);
  Arguments arguments;
  app.add_option("--config", arguments.config, "YAML configuration file");
  app.add_option("--set", arguments.overrides,
                 "Override one option, e.g. --set dram.bytes=8GiB; may be repeated")
      ->take_all();
  app.add_option("--ready-file", arguments.ready_file,
                 "File that receives one JSON line {pid, name, address, unix, http} once the "
                 "server is serving");
  app.add_flag("--help-config", arguments.help_config,
               "List every option with default, unit and range, and exit");
  app.add_flag("--check-config", arguments.check_config,
               "Print the resulting configuration and exit");
  app.set_version_flag("--version", std::string("mp-server ") + EMS_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  ems::config::ServerConfig config;
  if (arguments.help_config) {
    std::printf("%s", ems::config::Describe(config).c_str());
    return 0;
  }
  ems::Status status = ems::config::Load(arguments.config, arguments.overrides, &config);
  if (status.ok()) status = ems::server::CheckConfig(config);
  if (!status.ok()) return Refuse(status);
  const std::vector<ems::Status> problems = ems::server::CheckMachine(config);
  if (arguments.check_config) {
    std::printf("%s\n", ems::config::OneLine(config).c_str());
    ems::PrintWarnings("mp-server", problems);
    return 0;
  }
  if (!ems::log::Init(config.log_level()).ok()) return kUsage;
  status = ems::LogWarnings("mp_server", problems);
  return status.ok() ? Run(arguments, config) : Refuse(status);
}
