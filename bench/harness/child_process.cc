#include "bench/harness/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "fabric/net/socket.h"

namespace ems::bench {
namespace {

constexpr size_t kLogShownMax = 1000;

}  // namespace

std::string FindProgram(std::string_view name) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  std::string folders = fmt::format("{}:/usr/bin:/usr/local/bin", path == nullptr ? "" : path);
  while (!folders.empty()) {
    const std::string folder = folders.substr(0, folders.find(':'));
    folders.erase(0, folder.size() + 1);
    std::string program = fmt::format("{}/{}", folder, name);
    if (!folder.empty() && access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

// Between fork and exec only calls that are safe there.
Result<pid_t> Spawn(const std::vector<std::string>& arguments, const std::string& log,
                    int inherited) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& text : arguments) argv.push_back(const_cast<char*>(text.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error(StatusCode::kInternal, "fork: {}", fabric::ErrnoText(errno));
  if (pid > 0) return pid;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  setpgid(0, 0);  // Ctrl-C is for the bench, which then ends this one
  const int in = open("/dev/null", O_RDONLY);
  const int out = log.empty() ? 2 : open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(127);
  // Where it is that descriptor already it has to lose its close-on-exec.
  if (inherited == kInheritedFd && fcntl(inherited, F_SETFD, 0) != 0) _exit(127);
  if (inherited >= 0 && dup2(inherited, kInheritedFd) < 0) _exit(127);
  close_range(inherited < 0 ? kInheritedFd : kInheritedFd + 1, ~0U, 0);
  execv(argv[0], argv.data());
  _exit(127);
}

Result<uint64_t> WrittenBytes() {
  std::ifstream file("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "write_bytes:") return value;
  }
  return Error(StatusCode::kUnavailable, "/proc/self/io does not say write_bytes");
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, 0);
  }
  return *this;
}

bool ChildProcess::HasEnded() {
  if (pid_ != 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = 0;
  return pid_ == 0;
}

void ChildProcess::Kill() {
  if (HasEnded()) return;
  kill(pid_, SIGKILL);
  (void)Reap(pid_);
  pid_ = 0;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string LogEnd(const std::string& path) {
  const std::string log = ReadFile(path);
  return log.empty() ? "it printed nothing"
                     : log.substr(log.size() - std::min(log.size(), kLogShownMax));
}

int Reap(pid_t pid) {
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

}  // namespace ems::bench
