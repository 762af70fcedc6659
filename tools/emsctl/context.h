#pragma once
// What every emsctl command gets: the global options. Exit codes: 0 done · 1 failed, or something
// asked for is not there · 2 usage.
#include <functional>
#include <string>

#include "common/clock.h"

namespace CLI {
class App;
}

namespace ems::emsctl {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Filled by the command line before a command runs. Threading: one thread.
struct Context {
  std::string controller = "127.0.0.1:7400";
  std::string name_space = "default";
  double timeout_seconds = 5;
  bool json = false;

  Duration timeout() const {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_seconds));
  }
  Deadline deadline() const { return Deadline::After(timeout()); }
};

// Each adds its commands to `app`; *run is set to what does the chosen command's work and returns
// the exit code. `context` and `run` must outlive the parse and the run.
void AddClusterCommands(CLI::App* app, const Context* context, std::function<int()>* run);
void AddNamespaceCommands(CLI::App* app, const Context* context, std::function<int()>* run);
void AddModelCommands(CLI::App* app, const Context* context, std::function<int()>* run);
void AddObjectCommands(CLI::App* app, const Context* context, std::function<int()>* run);

}  // namespace ems::emsctl
