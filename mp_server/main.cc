// mp-server: one node of the pool.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/config_text.h"
#include "common/daemon.h"
#include "common/daemon_arguments.h"
#include "common/logging.h"
#include "common/parse_number.h"
#include "mp_server/descriptor_budget.h"
#include "mp_server/restart/fd_store.h"
#include "mp_server/restart/holder.h"
#include "mp_server/server.h"
#include "mp_server/server_metrics.h"
#include "mp_server/server_options.h"
#include "proto/config.pb.h"

namespace {

constexpr std::chrono::seconds kStopPatience{5};
constexpr std::chrono::seconds kStopMost{10};  // then the SSD tier's 5 s are over, too

constexpr const char* kAbout =
    "mp-server: gives DRAM to the EMS pool and serves the objects that fall to it.\n\n"
    "It registers with the controller, owns a share of the 16384 slots in proportion to\n"
    "dram.bytes, and answers Put, Get, Exists and Remove on TCP and, when unix_path is set, on a\n"
    "Unix socket. Clients of the same machine map the pool read-only through that socket and read\n"
    "it themselves (shm.share).";

constexpr const char* kFooter = R"(
FILES
  data_dir/lock   held while the server runs; a second server on the same folder exits
  data_dir/view   the highest view ever installed
  data_dir/place  where the folder lies: elsewhere it is a copy, and the SSD tier starts empty

RESTART
  What is in DRAM outlives a stop in order where a store keeps its memory meanwhile: systemd, of a
  unit with FileDescriptorStoreMax=, or `mp-server --hold DATA_DIR/holder.sock`, which runs beside
  the server. The next process of the same memory layout takes it over (restart.in_place).

SIGNALS
  SIGTERM, SIGINT  where DRAM is not handed over: first has its slots given to others, and serves on
                   until they have what they want of it (stop.drain_s at most; a second signal ends
                   that). Finishes requests in hand (5 s at most), hands DRAM over or releases the
                   slots, exits 0; where that takes 10 s, exits 1 at once, as after kill -9

EXIT STATUS
  0 stopped in order    1 failed to start, to go on or to stop    2 usage or configuration

EXAMPLES
  mp-server --config /etc/ems/server.yaml
  mp-server --set name=a --set data_dir=/var/lib/ems/a --set dram.bytes=8GiB
  mp-server --help-config
)";

// What is said to a process that is restarted in place.
struct RestartWords {
  std::string hold;  // a socket: be its holder, and no server
  std::string fd_store;
  std::string listen_pid, listen_fds, listen_names;
};

void AddRestartOptions(ems::Command* program, RestartWords* words) {
  program->AddOption("--hold", &words->hold,
                     "Serve nothing, but keep the memory of a server that restarts: listen on this "
                     "Unix socket. It comes first, and --ready-file alone may follow");
  program->AddOption("--fd-store", &words->fd_store,
                     "How many descriptors the service manager stores; systemd says it",
                     {.environment = "FDSTORE"});
  program->AddOption("--listen-pid", &words->listen_pid,
                     "Process that the stored descriptors are for; systemd says it",
                     {.environment = "LISTEN_PID"});
  program->AddOption("--listen-fds", &words->listen_fds, "How many there are; systemd says it",
                     {.environment = "LISTEN_FDS"});
  program->AddOption("--listen-fdnames", &words->listen_names, "Their names; systemd says them",
                     {.environment = "LISTEN_FDNAMES"});
}

// SOCKET [--ready-file FILE]
int Hold(const std::vector<std::string>& arguments) {
  const bool ready = arguments.size() == 3 && arguments[1] == "--ready-file";
  if (!ready && arguments.size() != 1) {
    std::fputs("mp-server: --hold takes a socket, and --ready-file alone beside it\n", stderr);
    return ems::kDaemonUsage;
  }
  (void)ems::server::RaiseDescriptorLimit();
  return ems::server::RunHolder(arguments[0], ready ? arguments[2] : "");
}

uint32_t NumberIn(const std::string& text) { return ems::ParseNumber<uint32_t>(text).value_or(0); }

// Null: there is none.
std::unique_ptr<ems::server::FdStore> FindStore(const ems::config::ServerConfig& config,
                                                const ems::DaemonArguments& arguments,
                                                const RestartWords& words) {
  (void)ems::server::RaiseDescriptorLimit();
  auto store = ems::server::SystemdStore({.notify_socket = arguments.notify_socket(),
                                          .store_max = NumberIn(words.fd_store),
                                          .listen_pid = words.listen_pid,
                                          .listen_fds = NumberIn(words.listen_fds),
                                          .listen_names = words.listen_names});
  if (store != nullptr) return store;
  const std::string& path = config.restart().holder();
  return ems::server::HolderStore(path.empty() ? config.data_dir() + "/holder.sock" : path);
}

int Serve(const ems::config::ServerConfig& config, const ems::DaemonArguments& arguments,
          const RestartWords& words) {
  const ems::StopSignals signals;
  ems::StopLimit limit("mp_server", kStopMost);
  EMS_LOG(kInfo, "mp_server", "starting version={} {}", EMS_VERSION, ems::config::OneLine(config));
  auto server = ems::server::Server::Start(config, FindStore(config, arguments, words));
  if (!server.ok()) {
    const bool usage = server.status().code() == ems::StatusCode::kInvalidArgument;
    return arguments.Fail(usage ? ems::kDaemonUsage : ems::kDaemonFailed,
                          ems::ToString(server.status()));
  }
  arguments.Notify("READY=1");  // also without a controller: then it waits for one, and listens
  bool announced = arguments.ready_file().empty();
  while (signals.Wait(std::chrono::milliseconds(announced ? 1000 : 10)) == 0) {
    if (announced || !(*server)->Ready().ok()) continue;
    const nlohmann::json ready = {{"pid", ::getpid()},
                                  {"name", config.name()},
                                  {"address", (*server)->data_address()},
                                  {"unix", (*server)->unix_path()},
                                  {"http", (*server)->http_address()}};
    const ems::Status written = ems::WriteReadyFile(arguments.ready_file(), ready.dump());
    if (!written.ok()) return arguments.Fail(ems::kDaemonFailed, ems::ToString(written));
    announced = true;
  }
  EMS_LOG(kInfo, "mp_server", "stopping");
  arguments.Notify("STOPPING=1");
  // A second signal ends it: whoever sends that does not want to wait.
  (*server)->Drain(std::chrono::seconds(config.stop().drain_s()),
                   [&](ems::Duration pause) { return signals.Wait(pause) != 0; });
  limit.Begin();
  (*server)->Stop(kStopPatience);
  server->reset();
  EMS_LOG(kInfo, "mp_server", "stopped");
  return ems::kDaemonOk;
}

}  // namespace

int main(int argc, char** argv) {
  ems::SkipLockOrderChecks();
  ems::DaemonArguments arguments(
      {.program = {.name = "mp-server", .about = kAbout, .version = EMS_VERSION, .footer = kFooter},
       .set_example = "dram.bytes=8GiB",
       .ready_file = "File that receives one JSON line {pid, name, address, unix, http} once the "
                     "server is serving",
       .metrics = &ems::server::ServerMetrics::Table});
  RestartWords words;
  AddRestartOptions(arguments.program(), &words);
  if (argc >= 3 && std::string_view(argv[1]) == "--hold") return Hold({argv + 2, argv + argc});
  ems::config::ServerConfig config;
  if (const auto exit_code = arguments.Load({argv + 1, argv + argc}, &config)) return *exit_code;
  const ems::Status checked = ems::server::CheckConfig(config);
  if (!checked.ok()) return arguments.Refuse(checked);
  const std::vector<ems::Status> problems = ems::server::CheckMachine(config);
  if (arguments.check_only()) return arguments.ShowConfig(config, problems);
  const ems::Status logging =
      ems::OpenLog(config.log_level(), config.log_format(), "mp_server", problems);
  if (!logging.ok()) return arguments.Refuse(logging);
  return Serve(config, arguments, words);
}
