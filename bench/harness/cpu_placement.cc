#include "bench/harness/cpu_placement.h"

#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

namespace ems::bench {
namespace {

std::vector<int> AllowedCpus(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(thread, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

bool Allow(pid_t thread, std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

std::vector<pid_t> ThreadsOf(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", process);
  for (const auto& entry : std::filesystem::directory_iterator(tasks, error)) {
    const std::string name = entry.path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread > 0) threads.push_back(thread);
  }
  return threads;
}

}  // namespace

CpuPlacement::~CpuPlacement() {
  for (const Moved& moved : moved_) (void)Allow(moved.thread, moved.cpus);  // it may have ended
}

Status CpuPlacement::Move(pid_t thread, int cpu) {
  std::vector<int> before = AllowedCpus(thread);
  if (before.empty()) return OkStatus();  // it has ended
  if (!Allow(thread, std::span(&cpu, 1))) {
    if (errno == ESRCH) return OkStatus();
    return Error(StatusCode::kPermissionDenied, "cannot place thread {} on CPU {}: {}", thread, cpu,
                 std::generic_category().message(errno));
  }
  moved_.push_back({thread, std::move(before)});
  return OkStatus();
}

Status CpuPlacement::Apart(std::span<const pid_t> servers) {
  const std::vector<int> cpus = AllowedCpus(gettid());
  if (cpus.size() < 2) {
    return Error(StatusCode::kFailedPrecondition, "only {} CPU to run on", cpus.size());
  }
  for (const pid_t server : servers) {
    for (const pid_t thread : ThreadsOf(server)) EMS_RETURN_IF_ERROR(Move(thread, cpus[1]));
  }
  return Move(gettid(), cpus[0]);
}

}  // namespace ems::bench
