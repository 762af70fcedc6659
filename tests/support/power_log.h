#pragma once
// The undo log that power_loss.cc writes and power_cut.cc reads: one record an operation, in the
// order in which they happened, each written before its operation and only a sync after it. A
// record is followed by three names (from, to, saved) and the bytes that were there before.
#include <cstdint>

namespace ems::testing {

// The folder whose files are recorded. Its log, and links to files that were removed, lie in a
// folder of that name with ".undo" at its end, on the same file system.
inline constexpr const char* kPowerLossVariable = "EMS_POWER_LOSS";
// A glob: syncs of these paths count for nothing, as if the code had none.
inline constexpr const char* kLostSyncsVariable = "EMS_POWER_LOST_SYNCS";
inline constexpr const char* kUndoSuffix = ".undo";
inline constexpr const char* kUndoLog = "/log";

enum class PowerOp : uint32_t {
  kWrite,   // bytes [offset, offset + length) of `inode`
  kResize,  // `inode` gets `length` bytes
  kSync,    // of `inode`, a file or a folder: all records of it in front of `offset` in the log
  kMake,    // `from` in `folder`: a file, a folder or a link
  kRemove,  // `from` in `folder`; `saved` in the undo folder is a link to it, empty for a folder
  kRename,  // `from` in `folder` to `to` in `folder_to`; `saved` as above, of what was there
};

struct PowerRecord {
  PowerOp op = PowerOp::kWrite;
  uint32_t from_bytes = 0, to_bytes = 0, saved_bytes = 0;
  uint64_t inode = 0, folder = 0, folder_to = 0;
  uint64_t offset = 0, length = 0;
  uint64_t size_before = 0;  // of the file
  uint64_t old_bytes = 0;    // that follow: from `offset`, or from the new end, to the old end
};

}  // namespace ems::testing
