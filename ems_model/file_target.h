#pragma once
// Loads files of a version into a folder, where engines map them.
//
// Invariant: under its own name a file is whole and on disk, or as it was before the load: bytes go
// to PATH.part, which is renamed when all of them are there and synced, and removed when the load
// fails. (PATH.part.part, if the version has a file PATH.part, and so on.)
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ems_model/load_target.h"

namespace ems::model {

// Bound: a descriptor and a mapping a file. Disk space is taken when the load begins.
class FileTarget final : public LoadTarget {
 public:
  struct Options {
    std::string folder;  // made when it is not there, and the folders of files below it
    std::function<bool(std::string_view path)> choose{};  // which files; empty: all
    bool sync = true;  // false: whole under its name, but not safe from a power failure
  };
  explicit FileTarget(Options options);
  ~FileTarget() override;
  FileTarget(const FileTarget&) = delete;
  FileTarget& operator=(const FileTarget&) = delete;

  // Errors: kInvalidArgument  no folder    kResourceExhausted  no space, memory or descriptors
  // kUnavailable  another load writes the same file    kPermissionDenied    kInternal  other errors
  // of the file system, with their text
  Status Begin(std::span<const LoadFile> files) override;
  uint64_t Wants(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status Place(uint32_t file, uint64_t offset, uint64_t bytes,
               std::vector<LoadRange>* ranges) override;
  // Syncs and renames a file whose last block it is.   Errors: as Begin
  Status Arrived(uint32_t file, uint64_t offset, uint64_t bytes) override;
  Status End(const Status& load) override;

 private:
  struct File;
  Status Open(File* file);
  Status Finish(File* file);

  const Options options_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace ems::model
