#include "mp_server/ssd/disk/region_index.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/durable_folder.h"
#include "common/rocksdb_options.h"
#include "mp_server/ssd/disk/index_files.h"
#include "mp_server/ssd/disk/synced_ends.h"

namespace ems::ssd {
namespace {

constexpr char kObjectPrefix = 'o';
constexpr char kMetaPrefix = 'm';
constexpr std::string_view kFormatKey = "mformat";
constexpr std::string_view kFormatText = "2";  // 1: keys lay in 4096 slots instead of 16384
// There since the file with the ends of synced files is kept: without that file it is damaged.
constexpr std::string_view kEndsKey = "msynced_ends";
// prefix · namespace id · generation (big-endian, so that a namespace's rows lie together) · hash
constexpr size_t kNamespaceBytes = 1 + 4 + 4;
constexpr size_t kKeyBytes = kNamespaceBytes + 16;
// Of rows in memory, then in one log and one table; a small index has small ones, so that they and
// what RocksDB needs to merge them stay a part of it.
constexpr uint64_t kBufferPart = 128;
constexpr uint64_t kBufferBytesMin = 256 * kKiB;
constexpr uint64_t kBufferBytesMax = 8 * kMiB;
// In buffers, of what an index may take: for deletes and the rows that are under way when it has no
// more room; and all that is no table merged before: logs, young tables, MANIFESTs.
constexpr uint64_t kReserveBuffers = 8;
constexpr uint64_t kFixedBuffers = 28;
// A row in a table takes 84 bytes, twice that while it is merged, and there are rows that are
// not merged away yet.
constexpr uint64_t kRowBytes = 200;
// Of the folders, and of files beside RocksDB's.
constexpr uint64_t kFolderBytes = 256 * kKiB;

uint64_t BufferBytes(uint64_t bytes_max) {
  if (bytes_max == 0) return kBufferBytesMax;
  return std::clamp(bytes_max / kBufferPart, kBufferBytesMin, kBufferBytesMax);
}

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

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// The first text behind all that begin with `prefix`, whose bytes are not all 0xff.
std::string After(std::string prefix) {
  while (prefix.back() == '\xff') prefix.pop_back();
  ++prefix.back();
  return prefix;
}

RegionIndex::KeyRange AllRows() {
  const std::string prefix(1, kObjectPrefix);
  return {prefix, After(prefix)};
}

rocksdb::Options MakeOptions(const RegionIndex::Options& wanted, rocksdb::Env* env) {
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_server", "SSD tier", &options);
  options.create_if_missing = wanted.create;
  options.env = env;
  // After a crash: what was written since the last sync may be torn, and is cut off where it is.
  // Damage before that has been refused by then (synced_ends.h). A mode that refuses damage by
  // itself would refuse a torn end as well, and take a shortened one for the true one.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  const uint64_t buffer = BufferBytes(wanted.bytes_max);
  options.write_buffer_size = buffer;
  options.max_write_buffer_number = 3;
  options.max_total_wal_size = 4 * buffer;
  options.level0_slowdown_writes_trigger = 8;
  options.level0_stop_writes_trigger = 12;
  options.allow_fallocate = false;  // what a file may take later counts against the disk, too
  options.target_file_size_base = 16 << 20;
  options.max_bytes_for_level_base = 64 << 20;
  options.level_compaction_dynamic_level_bytes = true;
  options.max_open_files = 256;
  options.max_manifest_file_size = buffer;
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

RowBatch::RowBatch() : batch_(std::make_unique<rocksdb::WriteBatch>()) {}
RowBatch::~RowBatch() = default;
void RowBatch::Put(const ObjectName& name, const Row& row) {
  const RowKey key = ToKey(name);
  const rocksdb::Status status =
      batch_->Put(ToSlice(key), rocksdb::Slice(reinterpret_cast<const char*>(&row), sizeof(row)));
  status.PermitUncheckedError();  // in memory: cannot fail
}
void RowBatch::Delete(const ObjectName& name) {
  const RowKey key = ToKey(name);
  batch_->Delete(ToSlice(key)).PermitUncheckedError();
}
void RowBatch::PutMeta(std::string_view name, std::string_view value) {
  batch_->Put(MetaKey(name), ToSlice(value)).PermitUncheckedError();
}
void RowBatch::Clear() { batch_->Clear(); }
uint32_t RowBatch::count() const { return batch_->Count(); }

RegionIndex::RegionIndex(Options options) : options_(std::move(options)) {}
RegionIndex::~RegionIndex() = default;

Status RegionIndex::Judge(const rocksdb::Status& status) {
  if (status.ok()) return OkStatus();
  // RocksDB keeps its first error of this kind for good: only a new start clears it.
  broken_.store(true, std::memory_order_release);
  return Error(StatusCode::kUnavailable, "index in {}: {}", options_.folder, status.ToString());
}

Status RegionIndex::OpenDb() {
  // RocksDB would make it, too, but first warn that it is not there, and not sync its name.
  if (options_.create) EMS_RETURN_IF_ERROR(MakeDurableFolder(options_.folder));
  env_.reset();
  ends_ = std::make_unique<SyncedEnds>(options_.folder);
  env_ = MakeIndexEnv(options_.env != nullptr ? options_.env : rocksdb::Env::Default(), ends_.get(),
                      &bytes_);
  rocksdb::DB* opened_db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(MakeOptions(options_, env_.get()), options_.folder, &opened_db);
  if (!opened.ok()) return OpenError(options_.folder, opened);
  db_.reset(opened_db);
  EMS_RETURN_IF_ERROR(CheckFormat());
  return CheckEnds();
}

Status RegionIndex::CheckFormat() {
  std::string format;
  const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), ToSlice(kFormatKey), &format);
  if (got.IsNotFound()) return PutRow(kFormatKey, kFormatText);
  if (!got.ok()) return OpenError(options_.folder, got);
  if (format == kFormatText) return OkStatus();
  return Error(
      StatusCode::kFailedPrecondition,
      "index in {} has format \"{}\", this server knows {}: another version wrote it (up to "
      "0.2 keys lay in 4096 slots, format 1; now in 16384, format 2). Nothing was "
      "changed; use that version, or give the tier another folder or an empty one",
      options_.folder, Printable(format), kFormatText);
}

// From the first opening on the ends are kept; then an index without them is a damaged one.
Status RegionIndex::CheckEnds() {
  std::string kept;
  const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), ToSlice(kEndsKey), &kept);
  if (!got.ok() && !got.IsNotFound()) return OpenError(options_.folder, got);
  if (ends_->found()) return got.ok() ? OkStatus() : PutRow(kEndsKey, "");
  if (got.ok()) {
    return Error(StatusCode::kDataLoss, "index in {}: the file {} is lost or damaged",
                 options_.folder, SyncedEnds::kFileName);
  }
  EMS_RETURN_IF_ERROR(ends_->Keep());
  return PutRow(kEndsKey, "");
}

Status RegionIndex::PutRow(std::string_view key, std::string_view value) {
  rocksdb::WriteOptions sync;
  sync.sync = true;
  return Judge(db_->Put(sync, ToSlice(key), ToSlice(value)));
}

Result<std::unique_ptr<RegionIndex>> RegionIndex::Open(const Options& options) {
  std::unique_ptr<RegionIndex> index(new RegionIndex(options));
  EMS_RETURN_IF_ERROR(index->OpenDb());
  return index;
}

Status RegionIndex::Reopen(bool create) {
  db_.reset();
  RemoveRocksDbDrafts(options_.folder);
  options_.create = create;
  const Status opened = OpenDb();
  broken_.store(!opened.ok(), std::memory_order_release);
  return opened;
}

Status RegionIndex::ForEach(const Visit& visit, uint64_t* unreadable) const {
  return ForEachIn(AllRows(), visit, unreadable);
}

std::vector<RegionIndex::KeyRange> RegionIndex::Split(uint32_t of_each_namespace) const {
  std::vector<KeyRange> ranges;
  if (db_ == nullptr) return {AllRows()};
  const uint32_t count = std::clamp(of_each_namespace, 1U, 256U);
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  std::string from = AllRows().first;
  for (it->Seek(from); it->Valid() && ToView(it->key()) < AllRows().end; it->Seek(from)) {
    const std::string ns(ToView(it->key()).substr(0, kNamespaceBytes));
    for (uint32_t i = 1; i < count; ++i) {
      std::string end = ns + static_cast<char>(i * 256 / count);
      ranges.push_back({std::exchange(from, end), end});
    }
    ranges.push_back({from, After(ns)});
    from = After(ns);
  }
  // What is no key of ours belongs to the last: it is counted there. So does an error of the walk.
  ranges.push_back({from, AllRows().end});
  return ranges;
}

uint64_t RegionIndex::RowsAbout() const {
  uint64_t rows = 0;
  if (db_ != nullptr) (void)db_->GetIntProperty(rocksdb::DB::Properties::kEstimateNumKeys, &rows);
  return rows;
}

Status RegionIndex::ForEachIn(const KeyRange& range, const Visit& visit,
                              uint64_t* unreadable) const {
  if (db_ == nullptr) return Closed();
  const rocksdb::Slice end(range.end);
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  read.readahead_size = 2 << 20;
  read.iterate_upper_bound = &end;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
  for (it->Seek(range.first); it->Valid(); it->Next()) {
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
               "index in {}: {}", options_.folder, it->status().ToString());
}

Result<std::string> RegionIndex::Meta(std::string_view name) const {
  if (db_ == nullptr) return Closed();
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), MetaKey(name), &value);
  if (status.ok() || status.IsNotFound()) return value;
  return Error(status.IsCorruption() ? StatusCode::kDataLoss : StatusCode::kUnavailable,
               "index in {}: {}", options_.folder, status.ToString());
}

Status RegionIndex::Write(const RowBatch& batch, bool sync) {
  if (broken()) return Closed();
  rocksdb::WriteOptions options;
  options.sync = sync;
  return Judge(db_->Write(options, batch.batch_.get()));
}

Status RegionIndex::SyncLog() {
  if (broken()) return Closed();
  return Judge(db_->SyncWAL());
}

uint64_t RegionIndex::disk_bytes_needed() {
  const uint64_t changes = bytes_.changes.load(std::memory_order_relaxed);
  if (db_ != nullptr && (tables_seen_ != changes || changes == 0)) {
    (void)db_->GetIntProperty(rocksdb::DB::Properties::kLiveSstFilesSize, &tables_bytes_);
    tables_seen_ = changes;
  }
  const uint64_t logs = bytes_.logs.load(std::memory_order_relaxed);
  const uint64_t later = 3 * logs + 2 * tables_bytes_ + BufferBytes(options_.bytes_max);
  return kFolderBytes + std::max(disk_bytes(), later);
}

bool RegionIndex::HasRoom() {
  if (options_.bytes_max == 0 || broken()) return true;  // a broken one says so when it is written
  const uint64_t reserve = kReserveBuffers * BufferBytes(options_.bytes_max);
  return disk_bytes_needed() + reserve <= options_.bytes_max;
}

uint64_t RegionIndex::RowsMax(uint64_t bytes_max) {
  const uint64_t fixed = kFolderBytes + kFixedBuffers * BufferBytes(bytes_max);
  return (bytes_max - std::min(bytes_max, fixed)) / kRowBytes;
}

}  // namespace ems::ssd
