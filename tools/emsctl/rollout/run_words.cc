#include "tools/emsctl/rollout/run_words.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/thread_pool.h"
#include "tools/emsctl/rollout/command_words.h"

namespace ems::emsctl {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(20);
constexpr Duration kEndPatience = std::chrono::seconds(2);

// Whether it has ended by then; `status` as waitpid's.
bool Ended(pid_t pid, Duration patience, int* status) {
  const Deadline until = Deadline::After(patience);
  StopFlag pause;
  while (true) {
    const pid_t ended = ::waitpid(pid, status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return true;
    if (until.Passed()) return false;
    pause.WaitFor(std::min(kLookEvery, until.Remaining()));
  }
}

}  // namespace

Status RunWords(const std::vector<std::string>& words, Duration patience) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), ::environ);
  posix_spawn_file_actions_destroy(&actions);
  const std::string what = Quoted(words);
  if (failed != 0)
    return Error(StatusCode::kNotFound, "cannot start {}: {}", what, ::strerrordesc_np(failed));
  int status = 0;
  if (!Ended(pid, patience, &status)) {
    (void)::kill(pid, SIGTERM);
    if (!Ended(pid, kEndPatience, &status)) {
      (void)::kill(pid, SIGKILL);
      (void)::waitpid(pid, &status, 0);
    }
    return Error(StatusCode::kDeadlineExceeded, "{} did not end in {} s", what,
                 std::chrono::duration_cast<std::chrono::seconds>(patience).count());
  }
  if (WIFSIGNALED(status))
    return Error(StatusCode::kInternal, "{} was ended by signal {}", what, WTERMSIG(status));
  if (WEXITSTATUS(status) != 0)
    return Error(StatusCode::kInternal, "{} ended with exit code {}", what, WEXITSTATUS(status));
  return OkStatus();
}

}  // namespace ems::emsctl
