#include "bench/peer_server.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "bench/child_process.h"
#include "common/clock.h"
#include "common/thread_pool.h"
#include "fabric/socket.h"

namespace ems::bench {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(10);
constexpr Duration kPollInterval = std::chrono::milliseconds(5);
constexpr size_t kLogShownMax = 600;

std::string_view ProgramName(PeerKind kind) {
  return kind == PeerKind::kRedis ? "redis-server" : "memcached";
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A port that was free a moment ago; 0 when there is none.
uint16_t FreePort() {
  const fabric::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* raw_address = reinterpret_cast<sockaddr*>(&address);
  if (!fd.valid() || bind(fd.get(), raw_address, length) != 0) return 0;
  return getsockname(fd.get(), raw_address, &length) == 0 ? ntohs(address.sin_port) : 0;
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

std::vector<std::string> RedisArguments(const PeerServerOptions& options, uint16_t port) {
  std::vector<std::string> arguments = {"--save",
                                        "",
                                        "--appendonly",
                                        "no",
                                        "--daemonize",
                                        "no",
                                        "--loglevel",
                                        "warning",
                                        "--maxmemory",
                                        fmt::format("{}", options.memory_bytes),
                                        "--maxmemory-policy",
                                        "noeviction",
                                        "--bind",
                                        "127.0.0.1",
                                        "--port",
                                        fmt::format("{}", port)};
  if (port == 0) {
    arguments.insert(arguments.end(), {"--unixsocket", "socket", "--unixsocketperm", "700"});
  }
  return arguments;
}

// -I: its largest item, header and key with it; -M: an error rather than a value lost.
std::vector<std::string> MemcachedArguments(const PeerServerOptions& options, uint16_t port) {
  const uint64_t item_mib = std::max<uint64_t>(1, options.value_bytes_max / kMiB + 1);
  std::vector<std::string> arguments = {"-m", fmt::format("{}", options.memory_bytes / kMiB),
                                        "-I", fmt::format("{}m", item_mib),
                                        "-M", "-U",
                                        "0",  "-c",
                                        "64"};
  if (geteuid() == 0) arguments.insert(arguments.end(), {"-u", "root"});
  if (port == 0) {
    arguments.insert(arguments.end(), {"-s", "socket", "-a", "700"});
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
  EMS_RETURN_IF_ERROR(server->MakeFolder());
  EMS_RETURN_IF_ERROR(server->ChooseAddress());
  server->version_ = VersionOf(options.kind, program, server->folder_ + "/version");
  EMS_ASSIGN_OR_RETURN(server->pid_, Spawn(server->Arguments(program), server->LogPath()));
  EMS_RETURN_IF_ERROR(server->WaitUntilItAnswers());
  return server;
}

PeerServer::~PeerServer() {
  End();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Status PeerServer::MakeFolder() {
  char path[] = "/tmp/ems-bench-XXXXXX";  // short: socket paths have 107 characters
  if (mkdtemp(path) == nullptr) {
    return Error(StatusCode::kInternal, "no temporary folder: {}", fabric::ErrnoText(errno));
  }
  folder_ = path;
  return OkStatus();
}

Status PeerServer::ChooseAddress() {
  if (options_.transport == PeerTransport::kUnix) {
    address_ = fmt::format("unix:{}/socket", folder_);
    return OkStatus();
  }
  port_ = FreePort();
  if (port_ == 0)
    return Error(StatusCode::kInternal, "no free port for {}", PeerName(options_.kind));
  address_ = fmt::format("127.0.0.1:{}", port_);
  return OkStatus();
}

std::vector<std::string> PeerServer::Arguments(const std::string& program) const {
  std::vector<std::string> arguments = {program};
  std::vector<std::string> more = options_.kind == PeerKind::kRedis
                                      ? RedisArguments(options_, port_)
                                      : MemcachedArguments(options_, port_);
  if (options_.kind == PeerKind::kRedis) more.insert(more.end(), {"--dir", folder_});
  for (std::string& text : more) {
    if (text == "socket") text = folder_ + "/socket";
    arguments.push_back(std::move(text));
  }
  return arguments;
}

Status PeerServer::WaitUntilItAnswers() {
  const Deadline deadline = Deadline::After(kStartTimeout);
  StopFlag pause;
  while (!HasEnded() && !deadline.Passed()) {
    // A value that is not there: the answer proves that it is this kind of server.
    const auto client = ConnectPeer(options_.kind, address_);
    std::byte nothing{};
    if (client.ok() && (*client)->Get("ems-bench-no-such-key", MutableBytes(&nothing, 1)).code() ==
                           StatusCode::kNotFound) {
      return OkStatus();
    }
    pause.WaitFor(kPollInterval);
  }
  const std::string log = ReadFile(LogPath());
  return Error(StatusCode::kUnavailable, "{} did not start: {}", ProgramName(options_.kind),
               log.empty() ? "it printed nothing"
                           : log.substr(log.size() - std::min(log.size(), kLogShownMax)));
}

// Reaps it when it has.
bool PeerServer::HasEnded() {
  if (pid_ == 0) return true;
  int wait_status = 0;
  if (waitpid(pid_, &wait_status, WNOHANG) != pid_) return false;
  pid_ = 0;
  return true;
}

// It has nothing to save.
void PeerServer::End() {
  if (HasEnded()) return;
  kill(pid_, SIGKILL);
  (void)Reap(pid_);
  pid_ = 0;
}

}  // namespace ems::bench
