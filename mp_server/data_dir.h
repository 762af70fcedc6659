#pragma once
// The server's folder on disk: one process at a time, and the highest view it has ever installed.
#include <string>

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

 private:
  DataDir(std::string path, fabric::Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  void ReadHighestView();

  std::string path_;
  fabric::Fd lock_;
  ViewVersion highest_view_;
};

}  // namespace ems::server
