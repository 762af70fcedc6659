#include "bench/harness/bench_daemon.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/harness/interrupt.h"
#include "common/thread_pool.h"

namespace ems::bench {
namespace {

constexpr Duration kEndPatience = std::chrono::seconds(15);
constexpr Duration kPollInterval = std::chrono::milliseconds(10);

}  // namespace

Result<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(const std::string& program,
                                                        const std::string& name,
                                                        const std::string& folder,
                                                        const std::vector<std::string>& flags) {
  auto daemon = std::make_unique<BenchDaemon>(Passkey{}, fmt::format("{}/{}", folder, name));
  const std::string ready = daemon->path_ + ".ready";
  std::error_code ignored;
  std::filesystem::remove(ready, ignored);
  std::vector<std::string> arguments = {program, "--ready-file", ready};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  EMS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, daemon->path_ + ".log"));
  daemon->process_ = ChildProcess(pid);
  return daemon;
}

Result<std::unique_ptr<BenchDaemon>> BenchDaemon::StartReady(
    const std::string& programs, const std::string& name, const std::string& folder,
    const std::vector<std::string>& settings, Duration timeout) {
  EMS_ASSIGN_OR_RETURN(const std::string program, FindDaemon(programs, name));
  std::vector<std::string> flags;
  for (const std::string& setting : settings) flags.insert(flags.end(), {"--set", setting});
  EMS_ASSIGN_OR_RETURN(auto daemon, Start(program, name, folder, flags));
  EMS_RETURN_IF_ERROR(daemon->WaitReady(timeout));
  return daemon;
}

// What is still there after its patience is killed with process_.
BenchDaemon::~BenchDaemon() {
  if (process_.HasEnded()) return;
  kill(process_.pid(), SIGTERM);
  const Deadline deadline = Deadline::After(kEndPatience);
  StopFlag never;
  while (!process_.HasEnded() && !deadline.Passed()) never.WaitFor(kPollInterval);
}

Status BenchDaemon::WithLog(StatusCode code, const char* what) const {
  return Error(code, "{} {}: {}", std::filesystem::path(path_).filename().string(), what,
               LogEnd(path_ + ".log"));
}

Status BenchDaemon::WaitReady(Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  StopFlag never;
  while (ReadFile(path_ + ".ready").empty()) {
    if (process_.HasEnded()) return WithLog(StatusCode::kUnavailable, "ended before it was ready");
    if (deadline.Passed()) return WithLog(StatusCode::kDeadlineExceeded, "is not ready in time");
    if (Interrupted()) return Interruption();
    never.WaitFor(kPollInterval);
  }
  return OkStatus();
}

std::string BenchDaemon::Field(const std::string& name) const {
  const auto json = nlohmann::json::parse(ReadFile(path_ + ".ready"), nullptr, false);
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
