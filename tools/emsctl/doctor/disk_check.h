#pragma once
// What `emsctl doctor` looks at on a disk, for a server's folder.
//
// Invariant: nothing stays: direct I/O is tried with 4 KiB in a file that has no name.
// Bound: none in time, as a disk that hangs holds its callers: give it a thread.
#include <cstdint>
#include <string>

#include "tools/emsctl/doctor/finding.h"

namespace ems::emsctl {

struct DiskNeeds {
  std::string key;         // "data_dir", "ssd.path"
  std::string folder;      // there, or to be made
  uint64_t bytes = 0;      // what is to fit into it, what lies there included
  bool direct_io = false;  // values are written past the page cache
};

// The kind of file system, its room, whether this user may write there, and direct I/O.
Finding CheckDisk(const DiskNeeds& needs);

}  // namespace ems::emsctl
