#pragma once
// Checks of a configuration against this machine: folders, disk space and memory, for
// --check-config and for the start of a daemon.
//
// Invariant: a check creates and changes nothing. Errors name the key, the value, and what to write
// or do.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems {

// That `path` is a folder that this user may write to, or can be made in one.
// Errors: kFailedPrecondition  it cannot be made, or not be written to    kNotFound  the folder
// that it lies in is not there: it can be made, too, but perhaps on another disk than was meant
Status CheckFolder(std::string_view key, const std::string& path);
// That the disk of `folder`, or of where it would be made, has `bytes` in all, free or not.
// Errors: kOutOfRange
Status CheckDiskBytes(std::string_view key, uint64_t bytes, const std::string& folder);
// What this process may use of the machine's memory: all of it, or its container's limit (cgroup
// v2, `limit_file`). 0: not known.
uint64_t MachineMemoryBytes(const std::string& limit_file = "/sys/fs/cgroup/memory.max");
// That the machine has more memory than `bytes`, free or not.   Errors: kInvalidArgument
Status CheckMemoryBytes(std::string_view key, uint64_t bytes);

// The errors among `checks`.
std::vector<Status> Problems(std::vector<Status> checks);
// What --check-config does with them: another machine may be the one that is meant, so they are
// lines "PROGRAM: warning: …" on standard error.
void PrintWarnings(std::string_view program, const std::vector<Status>& problems);
// What a start does with them: the first kInvalidArgument is returned, others are logged, as they
// may pass.
Status LogWarnings(std::string_view component, const std::vector<Status>& problems);

}  // namespace ems
