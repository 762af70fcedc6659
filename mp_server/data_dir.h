#pragma once
// The server's folder on disk: one process at a time, the highest view it has ever installed, and
// the lineage of what it stores.
#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/status.h"
#include "fabric/socket.h"

namespace ems::server {

// Holds the folder's lock for as long as it lives. Threading: one thread.
class DataDir final {
 public:
  // Makes the folder if needed and locks it.
  // Errors: kFailedPrecondition  another process has it    kUnavailable  cannot be made or written,
  // naming the path
  static Result<DataDir> Open(const std::string& path);

  // (0, 0) for a new folder. A damaged file counts as none, with a WARN: the view comes from the
  // controller anyway.
  ViewVersion highest_view() const { return highest_view_; }
  // Durable when it returns. Errors: kUnavailable
  Status SetHighestView(ViewVersion version);

  // A random number that has been the same for as long as each life of this server has had the same
  // SSD tier: what is stored there under it has missed nothing of what this server did. 0: none
  uint64_t lineage() const { return lineage_; }
  // A life without that tier, or with another one, begins: before it serves anything. Durable when
  // they return; the old lineage is over in any case but an error. Errors: kUnavailable
  Status BeginLineage();
  Status EndLineage();

 private:
  DataDir(std::string path, fabric::Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  // {number, its checksum} in the file `name`. Errors: kUnavailable
  Status WriteRecord(std::string_view name, uint64_t number) const;
  // nullopt: there is none, or it is damaged, with a WARN.
  std::optional<uint64_t> ReadRecord(std::string_view name) const;
  Status SyncFolder() const;

  std::string path_;
  fabric::Fd lock_;
  ViewVersion highest_view_;
  uint64_t lineage_ = 0;
};

}  // namespace ems::server
