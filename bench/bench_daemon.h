#pragma once
// A daemon of EMS that a bench starts for itself: a child process that says in a ready file where
// it listens.
//
// Invariant: the process is gone when this is; it also dies with the bench, however that ends.
// Bound: WaitReady has a timeout; ending takes kEndPatience at most, then it is killed.
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

struct BenchDaemonOptions {
  std::string program;             // a path
  std::string name;                // of its files in `folder`: NAME.log, NAME.ready
  std::string folder;              // there already
  std::vector<std::string> flags;  // besides --ready-file
};

// Threading: one thread, the one that started it (the kernel ties the child's life to it).
class BenchDaemon final {
  struct Passkey {};  // only Start constructs

 public:
  BenchDaemon(Passkey, BenchDaemonOptions options) : options_(std::move(options)) {}
  // Errors: kInternal  no process
  static Result<std::unique_ptr<BenchDaemon>> Start(BenchDaemonOptions options);
  ~BenchDaemon();
  BenchDaemon(const BenchDaemon&) = delete;
  BenchDaemon& operator=(const BenchDaemon&) = delete;

  // Errors: kUnavailable  it ended first; what it printed last is in the text
  // kDeadlineExceeded  so is it here    kCancelled  the bench is interrupted
  Status WaitReady(Duration timeout);
  // What its ready file says, a text; empty before it is ready, and where the file says none.
  std::string Field(const std::string& name) const;
  pid_t pid() const { return pid_; }
  // Ends it at once (SIGKILL), whatever it is doing.
  void Kill();

 private:
  bool HasEnded();
  std::string Path(const char* suffix) const;
  Status WithLog(StatusCode code, const std::string& what) const;

  const BenchDaemonOptions options_;
  pid_t pid_ = 0;  // 0: not running
};

// The path of a program of EMS: in `folder`, or when that is empty, beside this program, else as
// FindProgram. Errors: kNotFound  says how to build it
Result<std::string> FindDaemon(const std::string& folder, const std::string& name);

}  // namespace ems::bench
