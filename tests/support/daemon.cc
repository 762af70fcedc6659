#include "tests/support/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "common/check.h"
#include "fabric/net/socket.h"
#include "tests/support/paths.h"

namespace ems::testing {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(10);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A child with standard output and error in `output_path`. Between fork and exec only calls that
// are safe there.
Result<pid_t> Spawn(const std::string& program, const std::vector<std::string>& flags,
                    const std::string& output_path, std::optional<uint64_t> fd_limit,
                    const std::vector<std::string>& environment = {}) {
  const std::string path = program.starts_with('/') ? program : BinDir() + "/" + program;
  if (access(path.c_str(), X_OK) != 0) {
    return Error(StatusCode::kNotFound, "{} is not built", path);
  }
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  envp.reserve(environment.size() + 1);
  for (const std::string& one : environment) envp.push_back(const_cast<char*>(one.c_str()));
  for (char** own = environ; *own != nullptr; ++own) envp.push_back(*own);
  envp.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error(StatusCode::kInternal, "fork: {}", fabric::ErrnoText(errno));
  if (pid > 0) return pid;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int in = open("/dev/null", O_RDONLY);
  const int out = open(output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(127);
  close_range(3, ~0U, 0);
  if (fd_limit) {
    const rlimit limit{*fd_limit, *fd_limit};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

// Waits until the process ends; false when `timeout` passed first.
bool PollExit(int pid_fd, Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  pollfd poll_fd{.fd = pid_fd, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&poll_fd, 1, deadline.RemainingMs());
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

int ExitCode(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

int OpenPidFd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

int Reap(pid_t pid, int pid_fd) {
  int wait_status = 0;
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  close(pid_fd);
  return ExitCode(wait_status);
}

}  // namespace

Result<ProgramOutput> RunProgram(const std::string& program, const std::vector<std::string>& flags,
                                 Duration timeout) {
  char output[] = "/tmp/ems-run-XXXXXX";
  const int output_fd = mkstemp(output);
  EMS_CHECK(output_fd >= 0, "mkstemp: {}", fabric::ErrnoText(errno));
  close(output_fd);
  const Result<pid_t> pid = Spawn(program, flags, output, std::nullopt);
  if (!pid.ok()) {
    unlink(output);
    return pid.status();
  }
  const int pid_fd = OpenPidFd(*pid);
  const bool ended = PollExit(pid_fd, timeout);
  if (!ended) kill(*pid, SIGKILL);
  ProgramOutput result{.exit_code = Reap(*pid, pid_fd), .out = ReadFile(output)};
  unlink(output);
  if (!ended) {
    return Error(StatusCode::kDeadlineExceeded, "{} ran too long: {}", program, result.out);
  }
  return result;
}

Result<Daemon> Daemon::Start(Options options) {
  Daemon daemon(std::move(options));
  std::filesystem::remove(daemon.ReadyPath());
  std::vector<std::string> flags = daemon.options_.flags;
  if (!daemon.options_.program.starts_with('/'))
    flags.insert(flags.end(), {"--ready-file", daemon.ReadyPath()});
  EMS_ASSIGN_OR_RETURN(daemon.pid_, Spawn(daemon.options_.program, flags, daemon.LogPath(),
                                          daemon.options_.fd_limit, daemon.options_.environment));
  daemon.pid_fd_ = OpenPidFd(daemon.pid_);
  EMS_CHECK(daemon.pid_fd_ >= 0, "pidfd_open: {}", fabric::ErrnoText(errno));
  return daemon;
}

Daemon::Daemon(Daemon&& other) noexcept
    : options_(std::move(other.options_)),
      ready_(std::move(other.ready_)),
      pid_(std::exchange(other.pid_, 0)),
      pid_fd_(std::exchange(other.pid_fd_, -1)) {}

Daemon& Daemon::operator=(Daemon&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  options_ = std::move(other.options_);
  ready_ = std::move(other.ready_);
  pid_ = std::exchange(other.pid_, 0);
  pid_fd_ = std::exchange(other.pid_fd_, -1);
  return *this;
}

Daemon::~Daemon() { Kill(); }

Status Daemon::WaitReady(Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  while (true) {
    const auto json = nlohmann::json::parse(ReadFile(ReadyPath()), nullptr, false);
    if (json.is_object()) {
      ready_ = {.pid = json.value("pid", 0),
                .address = json.value("address", ""),
                .unix_path = json.value("unix", ""),
                .http_address = json.value("http", "")};
      return OkStatus();
    }
    if (deadline.Passed()) {
      return Error(StatusCode::kDeadlineExceeded, "{} is not ready: {}", options_.name, ReadLog());
    }
    if (Result<int> code = WaitExit(kPollInterval); code.ok()) {
      return Error(StatusCode::kUnavailable, "{} ended with {}: {}", options_.name, *code,
                   ReadLog());
    }
  }
}

void Daemon::Signal(int signal) const {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  // On a busy machine its other threads go on until one has taken the signal.
  siginfo_t info;
  if (signal == SIGSTOP)
    (void)waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

bool Daemon::running() const { return pid_ > 0 && !PollExit(pid_fd_, Duration::zero()); }

Result<int> Daemon::WaitExit(Duration timeout) {
  if (pid_ == 0) return Error(StatusCode::kFailedPrecondition, "{} does not run", options_.name);
  if (!PollExit(pid_fd_, timeout)) {
    return Error(StatusCode::kDeadlineExceeded, "{} still runs", options_.name);
  }
  const int code = Reap(std::exchange(pid_, 0), std::exchange(pid_fd_, -1));
  return code;
}

void Daemon::Kill() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  Reap(std::exchange(pid_, 0), std::exchange(pid_fd_, -1));
}

std::string Daemon::ReadLog() const { return ReadFile(LogPath()); }

uint64_t Daemon::ResidentBytes() const {
  std::istringstream statm(ReadFile("/proc/" + std::to_string(pid_) + "/statm"));
  uint64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace ems::testing
