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

#include "bench/harness/child_process.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

// Threading: one thread, the one that started it (the kernel ties the child's life to it).
class BenchDaemon final {
  struct Passkey {};  // only Start constructs

 public:
  BenchDaemon(Passkey, std::string path) : path_(std::move(path)) {}
  // `program`: a path. Its files are FOLDER/NAME.log and .ready. `flags`: besides --ready-file.
  // Errors: kInternal  no process
  static Result<std::unique_ptr<BenchDaemon>> Start(const std::string& program,
                                                    const std::string& name,
                                                    const std::string& folder,
                                                    const std::vector<std::string>& flags);
  // One of EMS's programs with KEY=VALUE settings, its files in `folder`, when it is ready.
  // `programs`: as FindDaemon takes it. Errors: as FindDaemon, Start and WaitReady
  static Result<std::unique_ptr<BenchDaemon>> StartReady(const std::string& programs,
                                                         const std::string& name,
                                                         const std::string& folder,
                                                         const std::vector<std::string>& settings,
                                                         Duration timeout);
  ~BenchDaemon();
  BenchDaemon(const BenchDaemon&) = delete;
  BenchDaemon& operator=(const BenchDaemon&) = delete;

  // Errors: kUnavailable  it ended first; what it printed last is in the text
  // kDeadlineExceeded  so is it here    kCancelled  the bench is interrupted
  Status WaitReady(Duration timeout);
  // What its ready file says, a text; empty before it is ready, and where the file says none.
  std::string Field(const std::string& name) const;
  pid_t pid() const { return process_.pid(); }
  // Ends it at once (SIGKILL), whatever it is doing.
  void Kill() { process_.Kill(); }

 private:
  Status WithLog(StatusCode code, const char* what) const;

  const std::string path_;  // of its files, without .log and .ready
  ChildProcess process_;
};

// The path of a program of EMS: in `folder`, or when that is empty, beside this program, else as
// FindProgram. Errors: kNotFound  says how to build it
Result<std::string> FindDaemon(const std::string& folder, const std::string& name);

}  // namespace ems::bench
