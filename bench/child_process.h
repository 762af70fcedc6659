#pragma once
// Other programs that the benches start: where they are, and a child process of one.
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::bench {

// Its path, or nothing when it is not installed. Looks in PATH, /usr/bin and /usr/local/bin.
std::string FindProgram(std::string_view name);

// A child that runs arguments[0], a path, with nothing as its input and its output added to the
// file `log`. It dies with the calling thread, and Ctrl-C does not reach it. The caller reaps it.
// Errors: kInternal  no process
Result<pid_t> Spawn(const std::vector<std::string>& arguments, const std::string& log);

// What this process, and children that it has reaped, have made the kernel write.
// Errors: kUnavailable  the kernel does not say (/proc/self/io)
Result<uint64_t> WrittenBytes();

// Waits until it has ended. Its exit code; 128 + signal when a signal ended it.
int Reap(pid_t pid);

}  // namespace ems::bench
