#include "common/daemon.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace ems {

void SkipLockOrderChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

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
  const int signal = sigtimedwait(&signals_, nullptr, &wait);
  return signal > 0 ? signal : 0;
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
