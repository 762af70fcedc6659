#pragma once
// Options that all RocksDB databases of EMS share, and the removal of files that a failed opening
// leaves.
#include <string>

namespace rocksdb {
struct Options;
}

namespace ems {

// Errors only, as warnings of `component` that begin with `what`, in our log. A log file of its own
// would lie on the disk that may be full, and Debian's RocksDB, with its assertions compiled in,
// aborts at the second line that finds no room there.
//
// No automatic recovery after a write that failed: it would append to the file whose end
// is unknown, and abort for the same reason. The owner of the database closes and reopens it.
void SetCommonRocksDbOptions(std::string component, std::string what, rocksdb::Options* options);

// Removes what an opening that met a full disk has left behind: RocksDB does not, and leaves more
// each time. For a database that this process has just closed: another's drafts are its own.
void RemoveRocksDbDrafts(const std::string& folder);

}  // namespace ems
