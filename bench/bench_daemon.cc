#include "bench/bench_daemon.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/child_process.h"
#include "bench/interrupt.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr Duration kEndPatience = std::chrono::seconds(15);
constexpr Duration kPollInterval = std::chrono::milliseconds(10);
constexpr size_t kLogShownMax = 1000;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Result<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(BenchDaemonOptions options) {
  auto daemon = std::make_unique<BenchDaemon>(Passkey{}, std::move(options));
  std::error_code ignored;
  std::filesystem::remove(daemon->Path(".ready"), ignored);
  std::vector<std::string> arguments = {daemon->options_.program, "--ready-file",
                                        daemon->Path(".ready")};
  arguments.insert(arguments.end(), daemon->options_.flags.begin(), daemon->options_.flags.end());
  EMS_ASSIGN_OR_RETURN(daemon->pid_, Spawn(arguments, daemon->Path(".log")));
  return daemon;
}

BenchDaemon::~BenchDaemon() {
  if (HasEnded()) return;
  kill(pid_, SIGTERM);
  const Deadline deadline = Deadline::After(kEndPatience);
  StopFlag never;
  while (!HasEnded()) {
    if (deadline.Passed()) {
      Kill();
      return;
    }
    never.WaitFor(kPollInterval);
  }
}

void BenchDaemon::Kill() {
  if (HasEnded()) return;
  kill(pid_, SIGKILL);
  (void)Reap(pid_);
  pid_ = 0;
}

std::string BenchDaemon::Path(const char* suffix) const {
  return fmt::format("{}/{}{}", options_.folder, options_.name, suffix);
}

// Reaps it when it has.
bool BenchDaemon::HasEnded() {
  if (pid_ == 0) return true;
  int wait_status = 0;
  if (waitpid(pid_, &wait_status, WNOHANG) != pid_) return false;
  pid_ = 0;
  return true;
}

Status BenchDaemon::WithLog(StatusCode code, const std::string& what) const {
  const std::string log = ReadFile(Path(".log"));
  return Error(code, "{} {}: {}", options_.name, what,
               log.empty() ? "it printed nothing"
                           : log.substr(log.size() - std::min(log.size(), kLogShownMax)));
}

Status BenchDaemon::WaitReady(Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  StopFlag never;
  while (ReadFile(Path(".ready")).empty()) {
    if (HasEnded()) return WithLog(StatusCode::kUnavailable, "ended before it was ready");
    if (deadline.Passed()) return WithLog(StatusCode::kDeadlineExceeded, "is not ready in time");
    if (Interrupted()) return Error(StatusCode::kCancelled, "interrupted");
    never.WaitFor(kPollInterval);
  }
  return OkStatus();
}

std::string BenchDaemon::Field(const std::string& name) const {
  const auto json = nlohmann::json::parse(ReadFile(Path(".ready")), nullptr, false);
  if (!json.is_object() || !json.contains(name) || !json[name].is_string()) return "";
  return json[name].get<std::string>();
}

Result<std::string> FindDaemon(const std::string& folder, const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside =
      fmt::format("{}/{}", folder.empty() ? self.parent_path().string() : folder, name);
  if (access(beside.c_str(), X_OK) == 0) return beside;
  const std::string found = folder.empty() ? FindProgram(name) : std::string();
  if (!found.empty()) return found;
  return Error(StatusCode::kNotFound, "no program {}: build it with ninja -C build/release {}",
               beside, name);
}

}  // namespace ems::bench
