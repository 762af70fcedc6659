#pragma once
// A folder for what a run writes, gone with this, and all that is in it.
#include <memory>
#include <string>

#include "common/status.h"

namespace ems::bench {

// Threading: one thread (holder).
class ScratchFolder final {
  struct Passkey {};  // only Make constructs

 public:
  ScratchFolder(Passkey, std::string path) : path_(std::move(path)) {}
  // "PARENT/ems-bench-XXXXXX". The default is short, as paths of Unix sockets have to be.
  // Errors: kInvalidArgument  the parent is no folder that can be written to
  static Result<std::unique_ptr<ScratchFolder>> Make(const std::string& parent = "/tmp");
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace ems::bench
