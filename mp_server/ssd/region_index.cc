#include "mp_server/ssd/region_index.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/rocksdb_options.h"
#include "mp_server/ssd/folder.h"

namespace ems::ssd {
namespace {

constexpr char kObjectPrefix = 'o';
constexpr char kMetaPrefix = 'm';
constexpr std::string_view kFormatKey = "mformat";
constexpr std::string_view kFormatText = "1";
// prefix · namespace id · generation (big-endian, so that a namespace's rows lie together) · hash
constexpr size_t kKeyBytes = 1 + 4 + 4 + 16;
constexpr size_t kWalBytesMax = 32 << 20;

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

using RowKey = std::array<char, kKeyBytes>;

void StoreBig(uint32_t value, char* at) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<char>(value >> (24 - 8 * i));
}
uint32_t LoadBig(const char* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(at[i]);
  return value;
}

RowKey ToKey(const ObjectName& name) {
  RowKey key;
  key[0] = kObjectPrefix;
  StoreBig(name.ns.id.value(), &key[1]);
  StoreBig(name.ns.generation, &key[5]);
  std::memcpy(&key[9], &name.hash, sizeof(name.hash));
  return key;
}
rocksdb::Slice ToSlice(const RowKey& key) { return {key.data(), key.size()}; }

ObjectName FromKey(const char* key) {
  ObjectName name;
  name.ns = {NamespaceId(LoadBig(key + 1)), LoadBig(key + 5)};
  std::memcpy(&name.hash, key + 9, sizeof(name.hash));
  return name;
}

std::string MetaKey(std::string_view name) {
  std::string key(1, kMetaPrefix);
  key.append(name);
  return key;
}

rocksdb::Options MakeOptions(const RegionIndex::Options& wanted) {
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_server", "SSD tier", &options);
  options.create_if_missing = wanted.create;
  if (wanted.env != nullptr) options.env = wanted.env;
  // After a crash: what was written last may be torn, nothing before it may be.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.write_buffer_size = 8 << 20;
  options.max_write_buffer_number = 3;
  options.max_total_wal_size = kWalBytesMax;
  options.target_file_size_base = 16 << 20;
  options.max_bytes_for_level_base = 64 << 20;
  options.level_compaction_dynamic_level_bytes = true;
  options.max_open_files = 256;
  options.max_manifest_file_size = 8 << 20;
  // Rows are read once, at the start: no filters, and a cache that only holds what a walk needs.
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(8 << 20);
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// Damage is told from a disk that refuses: the one is set aside, the other comes back.
Status OpenError(const std::string& folder, const rocksdb::Status& status) {
  const std::string text = status.ToString();
  std::error_code error;
  const bool there = std::filesystem::exists(folder + "/CURRENT", error);
  if (status.IsInvalidArgument() && text.find("does not exist") != std::string::npos)
    return Error(StatusCode::kNotFound, "no index in {}", folder);
  const bool damaged = status.IsCorruption() || status.IsNotSupported() || status.IsIncomplete() ||
                       (status.IsIOError() && status.IsPathNotFound() && there);
  return Error(damaged ? StatusCode::kDataLoss : StatusCode::kUnavailable, "index in {}: {}",
               folder, text);
}

Status Closed() { return Error(StatusCode::kUnavailable, "the index is closed after an error"); }

}  // namespace

struct RowBatch::Impl {
  rocksdb::WriteBatch batch;
};

RowBatch::RowBatch() : impl_(std::make_unique<Impl>()) {}
RowBatch::~RowBatch() = default;
void RowBatch::Put(const ObjectName& name, const Row& row) {
  const RowKey key = ToKey(name);
  const rocksdb::Status status = impl_->batch.Put(
      ToSlice(key), rocksdb::Slice(reinterpret_cast<const char*>(&row), sizeof(row)));
  status.PermitUncheckedError();  // in memory: cannot fail
}
void RowBatch::Delete(const ObjectName& name) {
  const RowKey key = ToKey(name);
  impl_->batch.Delete(ToSlice(key)).PermitUncheckedError();
}
void RowBatch::PutMeta(std::string_view name, std::string_view value) {
  impl_->batch.Put(MetaKey(name), ToSlice(value)).PermitUncheckedError();
}
void RowBatch::Clear() { impl_->batch.Clear(); }
uint32_t RowBatch::count() const { return impl_->batch.Count(); }

struct RegionIndex::Impl {
  explicit Impl(Options wanted) : options(std::move(wanted)) {}
  Options options;
  std::unique_ptr<rocksdb::DB> db;  // null while it is broken and could not be opened
  std::atomic<bool> broken{false};

  Status OpenDb();
  Status Judge(const rocksdb::Status& status) {
    if (status.ok()) return OkStatus();
    // RocksDB keeps its first error of this kind for good: only a new start clears it.
    broken.store(true, std::memory_order_release);
    return Error(StatusCode::kUnavailable, "index in {}: {}", options.folder, status.ToString());
  }
};

Status RegionIndex::Impl::OpenDb() {
  // RocksDB would make it, too, but first warn that it is not there.
  std::error_code ignored;
  if (options.create) std::filesystem::create_directory(options.folder, ignored);
  rocksdb::DB* opened_db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(MakeOptions(options), options.folder, &opened_db);
  if (!opened.ok()) return OpenError(options.folder, opened);
  db.reset(opened_db);
  std::string format;
  const rocksdb::Status got = db->Get(rocksdb::ReadOptions(), ToSlice(kFormatKey), &format);
  if (got.IsNotFound()) {
    rocksdb::WriteOptions sync;
    sync.sync = true;
    return Judge(db->Put(sync, ToSlice(kFormatKey), ToSlice(kFormatText)));
  }
  if (!got.ok()) return OpenError(options.folder, got);
  if (format == kFormatText) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "index in {} has format \"{}\", this server knows {}: it was written by a newer "
               "version; use that, or give the tier another folder",
               options.folder, Printable(format), kFormatText);
}

RegionIndex::RegionIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RegionIndex::~RegionIndex() = default;

Result<std::unique_ptr<RegionIndex>> RegionIndex::Open(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  EMS_RETURN_IF_ERROR(impl->OpenDb());
  return std::unique_ptr<RegionIndex>(new RegionIndex(std::move(impl)));
}

const std::string& RegionIndex::folder() const { return impl_->options.folder; }

Status RegionIndex::Reopen(bool create) {
  impl_->db.reset();
  RemoveRocksDbDrafts(impl_->options.folder);
  impl_->options.create = create;
  const Status opened = impl_->OpenDb();
  impl_->broken.store(!opened.ok(), std::memory_order_release);
  return opened;
}

Status RegionIndex::ForEach(const std::function<void(const ObjectName&, const Row&)>& visit,
                            uint64_t* unreadable) const {
  if (impl_->db == nullptr) return Closed();
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  read.readahead_size = 2 << 20;
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator(read));
  for (it->Seek(rocksdb::Slice(&kObjectPrefix, 1));
       it->Valid() && it->key().starts_with(rocksdb::Slice(&kObjectPrefix, 1)); it->Next()) {
    Row row;
    if (it->key().size() != kKeyBytes || it->value().size() != sizeof(row)) {
      ++*unreadable;
      continue;
    }
    std::memcpy(&row, it->value().data(), sizeof(row));
    visit(FromKey(it->key().data()), row);
  }
  if (it->status().ok()) return OkStatus();
  // A disk that refuses may read tomorrow; what it read wrongly stays wrong.
  return Error(it->status().IsIOError() ? StatusCode::kUnavailable : StatusCode::kDataLoss,
               "index in {}: {}", impl_->options.folder, it->status().ToString());
}

Result<std::string> RegionIndex::Meta(std::string_view name) const {
  if (impl_->db == nullptr) return Closed();
  std::string value;
  const rocksdb::Status status = impl_->db->Get(rocksdb::ReadOptions(), MetaKey(name), &value);
  if (status.ok() || status.IsNotFound()) return value;
  return Error(status.IsCorruption() ? StatusCode::kDataLoss : StatusCode::kUnavailable,
               "index in {}: {}", impl_->options.folder, status.ToString());
}

Status RegionIndex::Write(const RowBatch& batch, bool sync) {
  if (broken()) return Closed();
  rocksdb::WriteOptions options;
  options.sync = sync;
  return impl_->Judge(impl_->db->Write(options, &batch.impl_->batch));
}

Status RegionIndex::SyncLog() {
  if (broken()) return Closed();
  return impl_->Judge(impl_->db->SyncWAL());
}

bool RegionIndex::broken() const { return impl_->broken.load(std::memory_order_acquire); }

uint64_t RegionIndex::disk_bytes() const { return FolderBytes(impl_->options.folder); }

}  // namespace ems::ssd
