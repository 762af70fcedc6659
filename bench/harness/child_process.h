#pragma once
// Other programs that the benches start: where they are, and a child process of one.
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace ems::bench {

// Its path, or nothing when it is not installed. Looks in PATH, /usr/bin and /usr/local/bin.
std::string FindProgram(std::string_view name);

// A child that runs arguments[0], a path, with nothing as its input and its output added to the
// file `log`, or to this process's standard error when that is empty. It dies with the calling
// thread, and Ctrl-C does not reach it. The caller reaps it. `inherited`, when there is one, is its
// descriptor kInheritedFd. Errors: kInternal  no process
inline constexpr int kInheritedFd = 3;
Result<pid_t> Spawn(const std::vector<std::string>& arguments, const std::string& log,
                    int inherited = -1);

// What this process, and children that it has reaped, have made the kernel write.
// Errors: kUnavailable  the kernel does not say (/proc/self/io)
Result<uint64_t> WrittenBytes();

// Waits until it has ended. Its exit code; 128 + signal when a signal ended it.
int Reap(pid_t pid);

// A child of Spawn, or none. It is gone when this is. Move-only. Threading: one thread (holder).
class ChildProcess final {
 public:
  ChildProcess() = default;
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { Kill(); }
  pid_t pid() const { return pid_; }  // 0: none, or it has ended
  bool HasEnded();                    // reaps it when it has
  void Kill();                        // SIGKILL, whatever it is doing

 private:
  pid_t pid_ = 0;
};

// All of it; empty when there is none. Cost: memory of its size.
std::string ReadFile(const std::string& path);
// The end of what a program has printed into its log, "it printed nothing" otherwise.
std::string LogEnd(const std::string& path);

}  // namespace ems::bench
