#include "common/daemon.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "common/daemon_arguments.h"
#include "common/logging.h"

namespace ems {

void SkipLockOrderChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int StopSignals::Wait(Duration timeout) const {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const timespec wait{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  log::WriteHeldBack();
  const int signal = sigtimedwait(&signals_, nullptr, &wait);
  if (signal > 0) log::WriteAllHeldBack();
  return signal > 0 ? signal : 0;
}

void StopLimit::Begin() {
  thread_ = Thread("ems-stop-limit", [this] {
    if (stopped_.WaitFor(most_)) return;
    const auto took = std::chrono::duration<double>(most_);
    EMS_LOG(kError, folder_,
            "stopping took more than {:g} s, as if a disk answered no more: exits immediately",
            took.count());
    ::_exit(kDaemonFailed);
  });
}

StopLimit::~StopLimit() {
  stopped_.Set();
  thread_.Join();
}

Status WriteReadyFile(const std::string& path, const std::string& line) {
  const std::string draft = fmt::format("{}.{}", path, ::getpid());
  std::FILE* file = std::fopen(draft.c_str(), "we");
  const bool written = file != nullptr && std::fputs((line + "\n").c_str(), file) >= 0;
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed && std::rename(draft.c_str(), path.c_str()) == 0) return OkStatus();
  ::unlink(draft.c_str());
  return Error(StatusCode::kUnavailable, "ready file {} cannot be written", path);
}

}  // namespace ems
