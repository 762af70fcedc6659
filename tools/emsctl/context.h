#pragma once
// The global options, which every emsctl command gets, and the exit codes.
#include <memory>
#include <string>

#include "cluster/view_cache.h"
#include "common/clock.h"

namespace ems {
class Command;
}

namespace ems::emsctl {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 3;
inline constexpr int kExitUnreachable = 4;  // nobody answers, or not in time

// Filled by the command line before a command runs. Threading: one thread.
struct Context {
  std::string controller = "127.0.0.1:7400";
  std::string cluster;  // as it was given; empty: whichever answers
  std::string name_space = "default";
  double timeout_seconds = 5;
  bool json = false;
  // The cluster that is meant: --cluster, or the first one that answers.
  const std::unique_ptr<ViewCache> joined = std::make_unique<ViewCache>();

  Duration timeout() const {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_seconds));
  }
  Deadline deadline() const { return Deadline::After(timeout()); }
};

// Each adds its commands. `context` must outlive the parse and the run.
void AddClusterCommands(Command* program, const Context* context);
void AddDoctorCommand(Command* program, const Context* context);
void AddEventsCommand(Command* program, const Context* context);
void AddListCommand(Command* program, const Context* context);
void AddNamespaceCommands(Command* program, const Context* context);
void AddModelCommands(Command* program, const Context* context);
void AddObjectCommands(Command* program, const Context* context);
void AddRolloutCommands(Command* program, const Context* context);
void AddTopCommand(Command* program, const Context* context);

}  // namespace ems::emsctl
