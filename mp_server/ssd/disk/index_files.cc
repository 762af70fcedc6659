#include "mp_server/ssd/disk/index_files.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
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

bool IsLog(std::string_view name) { return name.ends_with(".log"); }

// Counts what a file takes: of all files, and of logs.
class Counter final {
 public:
  Counter(IndexBytes* bytes, bool log) : bytes_(bytes), log_(log) {}
  static Counter Of(IndexBytes* bytes, std::string_view name) { return {bytes, IsLog(name)}; }
  void Grow(uint64_t from, uint64_t to) const {
    Add(RoundUp(to, kBlockBytes) - RoundUp(from, kBlockBytes));
  }
  void Go(uint64_t size) const { Add(-RoundUp(size, kBlockBytes)); }

 private:
  void Add(uint64_t change) const {  // modulo 2^64
    bytes_->all.fetch_add(change, std::memory_order_relaxed);
    if (log_) bytes_->logs.fetch_add(change, std::memory_order_relaxed);
  }
  IndexBytes* bytes_;
  bool log_;
};

// A log is written ahead with zeros, which RocksDB reads as its end: a sync of what takes their
// place need not write the file's size as well, which costs one of the file system's journal.
constexpr uint64_t kAheadBytes = 64 * kKiB;
// Logs that are closed, by name, and where their zeros begin.
using Tails = Guarded<std::map<std::string, uint64_t>>;

// A file that is only appended to. After a failure, or a change that is no append, nobody knows
// what it holds beyond the last end: no later one is told of.
class AppendedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  // `ends`: null for a file that has none.
  AppendedFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name, SyncedEnds* ends,
               Tails* tails, Counter counter)
      : FSWritableFileOwnerWrapper(std::move(file)),
        name_(std::move(name)),
        log_(IsLog(name_)),
        ends_(ends),
        tails_(tails),
        counter_(counter) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  IODebugContext* debug) override {
    WriteAhead(data.size(), options, debug);
    return Appended(data, FSWritableFileOwnerWrapper::Append(data, options, debug));
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    WriteAhead(data.size(), options, debug);
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
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    if (const auto [end, ahead] = Ends(); ahead > end) {
      auto tails = tails_->Lock();
      (*tails)[name_] = end;
    }
    return FSWritableFileOwnerWrapper::Close(options, debug);
  }
  // What a log takes of the disk is counted here: nothing is allocated that Close would give back.
  void PrepareWrite(size_t offset, size_t bytes, const IOOptions& options,
                    IODebugContext* debug) override {
    if (!log_) FSWritableFileOwnerWrapper::PrepareWrite(offset, bytes, options, debug);
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
    uint64_t ahead = 0;  // where the zeros end; they are counted
    Hash64Stream hash;
    bool known = true;
  };

  // Where that fails the file grows as others do.
  void WriteAhead(uint64_t more, const IOOptions& options, IODebugContext* debug) {
    static const std::string zeros(kAheadBytes, '\0');
    const auto [end, ahead] = Ends();
    const uint64_t from = std::max(end, ahead);
    if (!log_ || more > kAheadBytes || end + more <= from) return;
    // A file of the machine: where its next append goes does not depend on this.
    if (!FSWritableFileOwnerWrapper::PositionedAppend(zeros, from, options, debug).ok()) return;
    counter_.Grow(from, from + kAheadBytes);
    auto contents = contents_.Lock();
    contents->ahead = from + kAheadBytes;
  }
  std::pair<uint64_t, uint64_t> Ends() {
    auto contents = contents_.Lock();
    return {contents->bytes, contents->ahead};
  }
  IOStatus Appended(const rocksdb::Slice& data, IOStatus status) {
    auto contents = contents_.Lock();
    contents->known = contents->known && status.ok();
    const uint64_t end = contents->bytes + data.size();  // also what may be half there
    counter_.Grow(std::max(contents->bytes, contents->ahead), std::max(end, contents->ahead));
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
  const bool log_;
  SyncedEnds* const ends_;
  Tails* const tails_;
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
      folder_ = path.substr(0, path.find_last_of('/') + 1);
      CountAll(folder_);
      return sound;
    }
    FileSystemWrapper::UnlockFile(*lock, options, debug).PermitUncheckedError();
    *lock = nullptr;
    return sound;
  }
  // RocksDB has closed all files: logs need no zeros at their ends any more.
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions& options,
                      IODebugContext* debug) override {
    std::map<std::string, uint64_t> tails;
    {
      auto closed = tails_.Lock();
      tails.swap(*closed);
    }
    std::error_code ignored;
    for (const auto& [name, end] : tails)
      std::filesystem::resize_file(folder_ + name, end, ignored);
    return FileSystemWrapper::UnlockFile(lock, options, debug);
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
    bytes_->changes.fetch_add(1, std::memory_order_relaxed);
    *file =
        std::make_unique<AppendedFile>(std::move(*file), std::move(name), ends, &tails_, counter);
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
    bytes_->changes.fetch_add(1, std::memory_order_relaxed);
    auto tails = tails_.Lock();
    tails->erase(name);
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
  std::string folder_;  // of what is locked
  Tails tails_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> MakeIndexEnv(rocksdb::Env* below, SyncedEnds* ends,
                                           IndexBytes* bytes) {
  return rocksdb::NewCompositeEnv(
      std::make_shared<IndexFiles>(below->GetFileSystem(), ends, bytes));
}

}  // namespace ems::ssd
