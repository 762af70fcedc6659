#include "mp_server/ssd/disk/index_files.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <string>
#include <string_view>
#include <utility>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/ssd/disk/aligned_buffer.h"
#include "mp_server/ssd/disk/folder.h"
#include "mp_server/ssd/disk/synced_ends.h"

namespace ems::ssd {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

std::string NameIn(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

IOStatus ToIo(const Status& status) {
  if (status.ok()) return IOStatus::OK();
  const std::string text(Message(status));
  return status.code() == StatusCode::kDataLoss ? IOStatus::Corruption(text)
                                                : IOStatus::IOError(text);
}

// Counts what a file takes: of all files, and of logs.
class Counter final {
 public:
  Counter(IndexBytes* bytes, bool log) : bytes_(bytes), log_(log) {}
  static Counter Of(IndexBytes* bytes, std::string_view name) {
    return {bytes, name.ends_with(".log")};
  }
  void Grow(uint64_t from, uint64_t to) const {
    Add(RoundUp(to, kBlockBytes) - RoundUp(from, kBlockBytes));
  }
  void Go(uint64_t size) const { Add(-RoundUp(size, kBlockBytes)); }

 private:
  void Add(uint64_t change) const {  // modulo 2^64
    bytes_->all.fetch_add(change, std::memory_order_release);
    if (log_) bytes_->logs.fetch_add(change, std::memory_order_release);
  }
  IndexBytes* bytes_;
  bool log_;
};

// A file that is only appended to. After a failure, or a change that is no append, nobody knows
// what it holds beyond the last end: no later one is told of.
class AppendedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  // `ends`: null for a file that has none.
  AppendedFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name, SyncedEnds* ends,
               Counter counter)
      : FSWritableFileOwnerWrapper(std::move(file)),
        name_(std::move(name)),
        ends_(ends),
        counter_(counter) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  IODebugContext* debug) override {
    return Appended(data, FSWritableFileOwnerWrapper::Append(data, options, debug));
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    return Appended(data, FSWritableFileOwnerWrapper::Append(data, options, info, debug));
  }
  IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    Lose();
    return FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, debug);
  }
  IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo& info,
                            IODebugContext* debug) override {
    Lose();
    return FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, info, debug);
  }
  IOStatus Truncate(uint64_t bytes, const IOOptions& options, IODebugContext* debug) override {
    Lose();
    return FSWritableFileOwnerWrapper::Truncate(bytes, options, debug);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    const Reached reached = Now();
    return Synced(reached, FSWritableFileOwnerWrapper::Sync(options, debug));
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    const Reached reached = Now();
    return Synced(reached, FSWritableFileOwnerWrapper::Fsync(options, debug));
  }

 private:
  struct Reached {
    uint64_t bytes = 0;
    uint64_t checksum = 0;
  };
  struct Contents {
    uint64_t bytes = 0;
    Hash64Stream hash;
    bool known = true;
  };

  IOStatus Appended(const rocksdb::Slice& data, IOStatus status) {
    auto contents = contents_.Lock();
    contents->known = contents->known && status.ok();
    counter_.Grow(contents->bytes, contents->bytes + data.size());  // also what may be half there
    contents->bytes += data.size();
    if (ends_ != nullptr)
      contents->hash.Update({reinterpret_cast<const std::byte*>(data.data()), data.size()});
    return status;
  }
  // What a sync that begins now covers at least.
  Reached Now() {
    auto contents = contents_.Lock();
    return {contents->bytes, contents->hash.Digest()};
  }
  IOStatus Synced(const Reached& reached, IOStatus status) {
    if (!status.ok()) Lose();
    if (ends_ == nullptr) return status;
    {
      auto contents = contents_.Lock();
      if (!contents->known) return status;
    }
    return ToIo(ends_->Set(name_, reached.bytes, reached.checksum));
  }
  void Lose() {
    auto contents = contents_.Lock();
    contents->known = false;
  }

  const std::string name_;
  SyncedEnds* const ends_;
  const Counter counter_;
  Guarded<Contents> contents_;
};

class IndexFiles final : public rocksdb::FileSystemWrapper {
 public:
  IndexFiles(const std::shared_ptr<rocksdb::FileSystem>& below, SyncedEnds* ends, IndexBytes* bytes)
      : FileSystemWrapper(below), ends_(ends), bytes_(bytes) {}
  const char* Name() const override { return "IndexFiles"; }

  using File = std::unique_ptr<rocksdb::FSWritableFile>;

  IOStatus LockFile(const std::string& path, const IOOptions& options, rocksdb::FileLock** lock,
                    IODebugContext* debug) override {
    IOStatus locked = FileSystemWrapper::LockFile(path, options, lock, debug);
    if (!locked.ok()) return locked;
    IOStatus sound = ToIo(ends_->LoadAndCheck());
    if (sound.ok()) {
      CountAll(path.substr(0, path.find_last_of('/')));
      return sound;
    }
    FileSystemWrapper::UnlockFile(*lock, options, debug).PermitUncheckedError();
    *lock = nullptr;
    return sound;
  }
  IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options, File* file,
                           IODebugContext* debug) override {
    std::string name = NameIn(path);
    SyncedEnds* const ends = SyncedEnds::Covers(name) ? ends_ : nullptr;
    if (IOStatus forgotten = ToIo(ends_->Forget(name)); !forgotten.ok()) return forgotten;
    const uint64_t size = SizeOf(path);  // of the file that this one replaces
    IOStatus made = FileSystemWrapper::NewWritableFile(path, options, file, debug);
    if (!made.ok()) return made;
    // RocksDB does so only after the file's first sync, when an end says already that it is there.
    if (ends != nullptr) {
      if (IOStatus named = SyncFolder(path, debug); !named.ok()) return named;
    }
    const Counter counter = Counter::Of(bytes_, name);
    counter.Go(size);
    bytes_->changes.fetch_add(1, std::memory_order_release);
    *file = std::make_unique<AppendedFile>(std::move(*file), std::move(name), ends, counter);
    return made;
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* debug) override {
    const std::string name = NameIn(path);
    if (IOStatus forgotten = ToIo(ends_->Forget(name)); !forgotten.ok()) return forgotten;
    const uint64_t size = SizeOf(path);
    IOStatus gone = FileSystemWrapper::DeleteFile(path, options, debug);
    if (!gone.ok()) return gone;
    Counter::Of(bytes_, name).Go(size);
    bytes_->changes.fetch_add(1, std::memory_order_release);
    return gone;
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    const uint64_t size = SizeOf(to);  // it takes the other one's place
    IOStatus renamed = FileSystemWrapper::RenameFile(from, to, options, debug);
    if (renamed.ok()) Counter::Of(bytes_, NameIn(to)).Go(size);
    return renamed;
  }

 private:
  IOStatus SyncFolder(const std::string& path, IODebugContext* debug) {
    std::unique_ptr<rocksdb::FSDirectory> folder;
    IOStatus opened = FileSystemWrapper::NewDirectory(path.substr(0, path.find_last_of('/')),
                                                      IOOptions(), &folder, debug);
    return opened.ok() ? folder->Fsync(IOOptions(), debug) : opened;
  }
  uint64_t SizeOf(const std::string& path) {
    uint64_t size = 0;
    const IOStatus found = FileSystemWrapper::GetFileSize(path, IOOptions(), &size, nullptr);
    return found.ok() ? size : 0;
  }
  void CountAll(const std::string& folder) {
    bytes_->all.store(0, std::memory_order_relaxed);
    bytes_->logs.store(0, std::memory_order_relaxed);
    const auto paths = ListFolder(folder);
    if (!paths.ok()) return;  // RocksDB meets the same
    for (const std::filesystem::path& path : *paths)
      Counter::Of(bytes_, path.filename().string()).Grow(0, SizeOf(path.string()));
  }

  SyncedEnds* const ends_;
  IndexBytes* const bytes_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> MakeIndexEnv(rocksdb::Env* below, SyncedEnds* ends,
                                           IndexBytes* bytes) {
  return rocksdb::NewCompositeEnv(
      std::make_shared<IndexFiles>(below->GetFileSystem(), ends, bytes));
}

}  // namespace ems::ssd
