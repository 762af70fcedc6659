#pragma once
// A disk under RocksDB that refuses on demand.
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

namespace ems::testing {

// What fails from now on; reads go on, but for kNoRead.
enum class DiskFault : uint8_t {
  kNone,
  kFull,      // whatever makes or lengthens a file: no space
  kBroken,    // the same: an I/O error
  kReadOnly,  // the same, and whatever locks or removes one: an error as of a read-only file system
  kNoSync,    // syncs alone
  kNoRead,    // reads, and opening files for them: an I/O error, which is no damage
};

class FaultyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyFileSystem(std::shared_ptr<std::atomic<DiskFault>> fault)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), fault_(std::move(fault)) {}
  const char* Name() const override { return "FaultyFileSystem"; }

  using Options = rocksdb::IOOptions;
  using Debug = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;
  using ReadableFile = std::unique_ptr<rocksdb::FSRandomAccessFile>;

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    File* file, Debug* debug) override {
    if (auto refused = Change(); !refused.ok()) return refused;
    return Wrapped(FileSystemWrapper::NewWritableFile(path, options, file, debug), file);
  }
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       File* file, Debug* debug) override {
    if (auto refused = Change(); !refused.ok()) return refused;
    return Wrapped(FileSystemWrapper::ReopenWritableFile(path, options, file, debug), file);
  }
  rocksdb::IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                                      const rocksdb::FileOptions& options, File* file,
                                      Debug* debug) override {
    if (auto refused = Change(); !refused.ok()) return refused;
    return Wrapped(FileSystemWrapper::ReuseWritableFile(path, old_path, options, file, debug),
                   file);
  }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      Debug* debug) override {
    if (auto refused = Read(); !refused.ok()) return refused;
    return FileSystemWrapper::NewSequentialFile(path, options, file, debug);
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options, ReadableFile* file,
                                        Debug* debug) override {
    if (auto refused = Read(); !refused.ok()) return refused;
    auto made = FileSystemWrapper::NewRandomAccessFile(path, options, file, debug);
    if (made.ok()) *file = std::make_unique<UnreadableFile>(std::move(*file), this);
    return made;
  }
  rocksdb::IOStatus CreateDir(const std::string& path, const Options& options,
                              Debug* debug) override {
    if (auto refused = Change(); !refused.ok()) return refused;
    return FileSystemWrapper::CreateDir(path, options, debug);
  }
  rocksdb::IOStatus CreateDirIfMissing(const std::string& path, const Options& options,
                                       Debug* debug) override {
    // As mkdir: a folder that is there is no reason to refuse.
    const bool there = FileSystemWrapper::FileExists(path, options, debug).ok();
    if (auto refused = Change(); !there && !refused.ok()) return refused;
    return FileSystemWrapper::CreateDirIfMissing(path, options, debug);
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const Options& options, Debug* debug) override {
    if (auto refused = Remove(); !refused.ok()) return refused;
    return FileSystemWrapper::RenameFile(from, to, options, debug);
  }
  rocksdb::IOStatus DeleteFile(const std::string& path, const Options& options,
                               Debug* debug) override {
    if (auto refused = Remove(); !refused.ok()) return refused;
    return FileSystemWrapper::DeleteFile(path, options, debug);
  }
  rocksdb::IOStatus LockFile(const std::string& path, const Options& options,
                             rocksdb::FileLock** lock, Debug* debug) override {
    if (auto refused = Remove(); !refused.ok()) return refused;
    return FileSystemWrapper::LockFile(path, options, lock, debug);
  }

 private:
  class FaultyFile final : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    FaultyFile(File file, const FaultyFileSystem* disk)
        : FSWritableFileOwnerWrapper(std::move(file)), disk_(disk) {}
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                             Debug* debug) override {
      if (auto refused = disk_->Change(); !refused.ok()) return refused;
      return FSWritableFileOwnerWrapper::Append(data, options, debug);
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                             const rocksdb::DataVerificationInfo& info, Debug* debug) override {
      if (auto refused = disk_->Change(); !refused.ok()) return refused;
      return FSWritableFileOwnerWrapper::Append(data, options, info, debug);
    }
    rocksdb::IOStatus Sync(const Options& options, Debug* debug) override {
      if (auto refused = disk_->Sync(); !refused.ok()) return refused;
      return FSWritableFileOwnerWrapper::Sync(options, debug);
    }
    rocksdb::IOStatus Fsync(const Options& options, Debug* debug) override {
      if (auto refused = disk_->Sync(); !refused.ok()) return refused;
      return FSWritableFileOwnerWrapper::Fsync(options, debug);
    }

   private:
    const FaultyFileSystem* const disk_;
  };

  class UnreadableFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
   public:
    UnreadableFile(ReadableFile file, const FaultyFileSystem* disk)
        : FSRandomAccessFileOwnerWrapper(std::move(file)), disk_(disk) {}
    rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const Options& options,
                           rocksdb::Slice* result, char* scratch, Debug* debug) const override {
      if (auto refused = disk_->Read(); !refused.ok()) return refused;
      return FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, debug);
    }
    rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                                const Options& options, Debug* debug) override {
      if (auto refused = disk_->Read(); !refused.ok()) return refused;
      return FSRandomAccessFileOwnerWrapper::MultiRead(requests, count, options, debug);
    }
    rocksdb::IOStatus Prefetch(uint64_t offset, size_t bytes, const Options& options,
                               Debug* debug) override {
      if (auto refused = disk_->Read(); !refused.ok()) return refused;
      return FSRandomAccessFileOwnerWrapper::Prefetch(offset, bytes, options, debug);
    }

   private:
    const FaultyFileSystem* const disk_;
  };

  rocksdb::IOStatus Wrapped(rocksdb::IOStatus made, File* file) {
    if (made.ok()) *file = std::make_unique<FaultyFile>(std::move(*file), this);
    return made;
  }
  rocksdb::IOStatus Change() const {
    switch (fault_->load()) {
      case DiskFault::kFull:
        return rocksdb::IOStatus::NoSpace("No space left on device");
      case DiskFault::kBroken:
        return rocksdb::IOStatus::IOError("Input/output error");
      case DiskFault::kReadOnly:
        return rocksdb::IOStatus::IOError("Read-only file system");
      default:
        return rocksdb::IOStatus::OK();
    }
  }
  rocksdb::IOStatus Remove() const {
    return fault_->load() == DiskFault::kReadOnly ? Change() : rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Read() const {
    return fault_->load() == DiskFault::kNoRead ? rocksdb::IOStatus::IOError("cannot read")
                                                : rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Sync() const {
    if (fault_->load() == DiskFault::kNoSync) return rocksdb::IOStatus::IOError("cannot sync");
    return Change();
  }

  const std::shared_ptr<std::atomic<DiskFault>> fault_;
};

// Must outlive the index that works on it. Threading: thread-safe.
class FaultyDisk final {
 public:
  rocksdb::Env* env() { return env_.get(); }
  void Set(DiskFault fault) { fault_->store(fault); }

 private:
  const std::shared_ptr<std::atomic<DiskFault>> fault_ =
      std::make_shared<std::atomic<DiskFault>>(DiskFault::kNone);
  const std::unique_ptr<rocksdb::Env> env_ =
      rocksdb::NewCompositeEnv(std::make_shared<FaultyFileSystem>(fault_));
};

}  // namespace ems::testing
