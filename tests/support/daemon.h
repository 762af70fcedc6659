#pragma once
// A daemon as a test starts it: a child process with its log in a file.
//
// Invariant: the process is gone when its Daemon is; it also dies when the test process does,
// however that ends. Bound: every wait has a timeout; a log line limit is the daemon's own.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::testing {

struct ReadyInfo {
  pid_t pid = 0;
  std::string address;       // host:port of the data or control plane
  std::string unix_path;     // servers only; empty: none
  std::string http_address;  // empty: none
};

struct ProgramOutput {
  int exit_code = 0;  // 128 + signal when one ended it
  std::string out;    // standard output and error together, as a terminal would show them
};

// Runs `program` of the build's bin folder to its end; it is killed after `timeout`.
// Errors: kNotFound  no such program    kDeadlineExceeded  it ran too long (what it printed is in
// the text)
Result<ProgramOutput> RunProgram(const std::string& program, const std::vector<std::string>& flags,
                                 Duration timeout = std::chrono::seconds(20));

// Threading: one thread (the one that made it: the kernel ties the child's life to that thread).
class Daemon final {
 public:
  struct Options {
    std::string program;  // "mp-server", from the build's bin folder; or a path: no daemon of ours
    std::string folder;   // of log and ready file; there already
    std::string name;     // of those files
    std::vector<std::string> flags;
    std::optional<uint64_t> fd_limit;           // RLIMIT_NOFILE of the child
    std::vector<std::string> environment = {};  // NAME=value, before that of the test
  };

  // Starts it and returns at once.  Errors: kNotFound  no such program    kInternal  fork failed
  static Result<Daemon> Start(Options options);
  Daemon(Daemon&& other) noexcept;
  Daemon& operator=(Daemon&& other) noexcept;
  ~Daemon();  // SIGKILL, if it still runs

  // Waits for the ready file.  Errors: kUnavailable  it ended first    kDeadlineExceeded
  Status WaitReady(Duration timeout);
  const ReadyInfo& ready() const { return ready_; }

  bool running() const;  // it has not ended, by itself either
  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, 128 + signal when one ended it.  Errors: kDeadlineExceeded  it still runs
  Result<int> WaitExit(Duration timeout);
  // SIGKILL, and waits for the end.
  void Kill();

  const Options& options() const { return options_; }
  std::string ReadLog() const;
  // Resident memory in bytes; 0 when it is gone.
  uint64_t ResidentBytes() const;

 private:
  explicit Daemon(Options options) : options_(std::move(options)) {}
  std::string ReadyPath() const { return options_.folder + "/" + options_.name + ".ready"; }
  std::string LogPath() const { return options_.folder + "/" + options_.name + ".log"; }

  Options options_;
  ReadyInfo ready_;
  pid_t pid_ = 0;  // 0: not running
  int pid_fd_ = -1;
};

}  // namespace ems::testing
