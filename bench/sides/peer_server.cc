#include "bench/sides/peer_server.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "bench/harness/report.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(10);
constexpr Duration kPollInterval = std::chrono::milliseconds(5);

std::string_view ProgramName(PeerKind kind) {
  return kind == PeerKind::kRedis ? "redis-server" : "memcached";
}

// A port that was free a moment ago; 0 when there is none.
uint16_t FreePort() {
  const Result<fabric::Fd> fd = fabric::ListenTcp({"127.0.0.1", 0, ""});
  return fd.ok() ? fabric::BoundPort(fd->get()) : 0;
}

// "redis-server 7.0.15", from what it prints into `log`; the bare name when it does not say.
std::string VersionOf(PeerKind kind, const std::string& program, const std::string& log) {
  const std::string name(ProgramName(kind));
  const Result<pid_t> pid = Spawn({program, "--version"}, log);
  if (!pid.ok()) return name;
  (void)Reap(*pid);
  const std::string said = ReadFile(log);
  const size_t first = said.find_first_of("0123456789");
  if (first == std::string::npos) return name;
  const size_t end = said.find_first_not_of("0123456789.", first);
  return fmt::format("{} {}", name, said.substr(first, end - first));
}

// By a file of settings, `folder`/redis.conf. Errors: kInternal  it cannot be written
Result<std::vector<std::string>> RedisArguments(const PeerServerOptions& options, uint16_t port,
                                                const std::string& folder) {
  const std::string path = folder + "/redis.conf";
  std::string settings = fmt::format(
      "dir {}\nsave \"\"\nappendonly no\ndaemonize no\nloglevel warning\nmaxmemory {}\n"
      "maxmemory-policy noeviction\nbind 127.0.0.1\nport {}\n",
      folder, options.memory_bytes, port);
  if (options.threads > 0)
    settings += fmt::format("io-threads {}\nio-threads-do-reads yes\n", options.threads);
  if (port == 0) settings += fmt::format("unixsocket {}/socket\nunixsocketperm 700\n", folder);
  EMS_RETURN_IF_ERROR(WriteWhole(path, settings));
  return std::vector{path};
}

// -I: its largest item, header and key with it; -M: an error rather than a value lost.
std::vector<std::string> MemcachedArguments(const PeerServerOptions& options, uint16_t port,
                                            const std::string& folder) {
  const uint64_t item_mib = std::max<uint64_t>(1, options.value_bytes_max / kMiB + 1);
  std::vector<std::string> arguments = {"-m", fmt::format("{}", options.memory_bytes / kMiB),
                                        "-I", fmt::format("{}m", item_mib),
                                        "-M", "-U",
                                        "0",  "-c",
                                        "64"};
  if (options.threads > 0)
    arguments.insert(arguments.end(), {"-t", fmt::format("{}", options.threads)});
  if (geteuid() == 0) arguments.insert(arguments.end(), {"-u", "root"});
  if (port == 0) {
    arguments.insert(arguments.end(), {"-s", folder + "/socket", "-a", "700"});
  } else {
    arguments.insert(arguments.end(), {"-l", "127.0.0.1", "-p", fmt::format("{}", port)});
  }
  return arguments;
}

}  // namespace

std::string FindPeerProgram(PeerKind kind) { return FindProgram(ProgramName(kind)); }

Result<std::unique_ptr<PeerServer>> PeerServer::Start(const PeerServerOptions& options) {
  const std::string program = FindPeerProgram(options.kind);
  if (program.empty()) {
    return Error(StatusCode::kNotFound, "{0} is not installed (Debian package {0})",
                 ProgramName(options.kind));
  }
  auto server = std::make_unique<PeerServer>(Passkey{}, options);
  EMS_ASSIGN_OR_RETURN(server->folder_, ScratchFolder::Make());
  EMS_RETURN_IF_ERROR(server->ChooseAddress());
  server->version_ = VersionOf(options.kind, program, server->folder_->path() + "/version");
  std::vector<std::string> arguments;
  if (options.kind == PeerKind::kRedis) {
    EMS_ASSIGN_OR_RETURN(arguments,
                         RedisArguments(options, server->port_, server->folder_->path()));
  } else {
    arguments = MemcachedArguments(options, server->port_, server->folder_->path());
  }
  arguments.insert(arguments.begin(), program);
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, server->LogPath()));
  server->process_ = ChildProcess(pid);
  EMS_RETURN_IF_ERROR(server->WaitUntilItAnswers());
  return server;
}

Status PeerServer::ChooseAddress() {
  if (options_.transport == PeerTransport::kUnix) {
    address_ = fmt::format("unix:{}/socket", folder_->path());
    return OkStatus();
  }
  port_ = FreePort();
  if (port_ == 0)
    return Error(StatusCode::kInternal, "no free port for {}", PeerName(options_.kind));
  address_ = fmt::format("127.0.0.1:{}", port_);
  return OkStatus();
}

Status PeerServer::WaitUntilItAnswers() {
  const Deadline deadline = Deadline::After(kStartTimeout);
  StopFlag pause;
  while (!process_.HasEnded() && !deadline.Passed()) {
    // A value that is not there: the answer proves that it is this kind of server.
    auto client = PeerClient::Connect(options_.kind, address_);
    std::byte nothing{};
    if (client.ok() && client->Get("ems-bench-no-such-key", MutableBytes(&nothing, 1)).code() ==
                           StatusCode::kNotFound) {
      return OkStatus();
    }
    pause.WaitFor(kPollInterval);
  }
  return Error(StatusCode::kUnavailable, "{} did not start: {}", ProgramName(options_.kind),
               LogEnd(LogPath()));
}

}  // namespace ems::bench
