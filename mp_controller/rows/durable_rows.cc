#include "mp_controller/rows/durable_rows.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "common/bytes.h"
#include "common/durable_folder.h"
#include "common/fail_point.h"
#include "common/logging.h"
#include "common/rocksdb_options.h"

namespace ems::controller {
namespace {

// Present once a store has been made here: from then on a missing database is damage, not a first
// start.
constexpr std::string_view kMarkerName = "EMS_CONTROLLER_STORE";
// Format 1: views of 4096 slots. A store of another format is refused before a row of it is read.
constexpr std::string_view kMarkerText = "format 3\n";
constexpr std::string_view kMarkerWithoutLedger = "format 2\n";
constexpr size_t kMarkerBytesMax = 64;
constexpr std::string_view kDatabaseName = "store";
constexpr std::string_view kLedgerKey = "ledger";
constexpr std::string_view kNoteName = "CHANGES";
constexpr Duration kMendEvery = std::chrono::seconds(1);
constexpr Duration kMendEveryMax = std::chrono::seconds(15);

rocksdb::Options MakeOptions(bool create) {
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_controller", "store", &options);
  options.create_if_missing = create;
  // A record torn by a crash was never acknowledged; damage before the end is refused.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.write_buffer_size = 4 << 20;
  options.max_total_wal_size = 16 << 20;
  options.max_open_files = 64;
  return options;
}

rocksdb::WriteOptions Synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

// A change by key: what each row is afterwards; nullopt: none.
using RowsAfter = std::map<std::string, std::optional<std::string>>;

RowsAfter AfterOf(const RowChange& change) {
  RowsAfter after;
  for (const auto& [key, value] : change.put) after[key] = value;
  for (const std::string& key : change.drop) after[key] = std::nullopt;
  return after;
}

// Makes `path` with kMarkerText, in one step and durable with its folder entry.
Status WriteMarker(const std::string& folder, const std::string& path) {
  const std::string next = path + ".next";
  const int file = ::open(next.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = file >= 0 && dir >= 0 &&
                    ::write(file, kMarkerText.data(), kMarkerText.size()) ==
                        static_cast<ssize_t>(kMarkerText.size()) &&
                    ::fsync(file) == 0 && ::rename(next.c_str(), path.c_str()) == 0 &&
                    ::fsync(dir) == 0;
  if (file >= 0) ::close(file);
  if (dir >= 0) ::close(dir);
  if (done) return OkStatus();
  return Error(StatusCode::kUnavailable, "{}: cannot be written", path);
}

// What the marker says; empty when a crash tore it as it was made: nothing had been stored then.
std::string ReadMarker(const std::string& path) {
  std::string text(kMarkerBytesMax, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

Result<bool> DurableRows::CheckMarker(const std::string& path) const {
  const std::string text = ReadMarker(path);
  if (text == kMarkerText) return true;
  if (text.empty() || text == kMarkerWithoutLedger) return false;
  const auto line = [](std::string_view all) { return Printable(all.substr(0, all.find('\n'))); };
  return Error(StatusCode::kFailedPrecondition,
               "the controller's store in {} has \"{}\", this mp-controller reads \"{}\": another "
               "version made it (up to 0.2 keys lay in 4096 slots, format 1; now in 16384, from "
               "format 2 on: servers would not find what they have stored). Nothing was changed. "
               "Use that version, or start with an empty folder. {}",
               folder_, line(text), line(kMarkerText), advice_);
}

Status DurableRows::Damaged(std::string_view what) const {
  return Error(StatusCode::kDataLoss,
               "the controller's store in {} is damaged: {}. Nothing was changed. {}", folder_,
               what, advice_);
}

// Of what had been acknowledged. RocksDB has opened it as if nothing was wrong.
Status DurableRows::Lost(std::string_view what) const {
  return Error(StatusCode::kDataLoss, "the controller's store in {} is damaged: it has lost {}. {}",
               folder_, what, advice_);
}

// What RocksDB says when a store does not open, as an operator needs it.
Status DurableRows::OpenError(const rocksdb::Status& status) const {
  const std::string text = status.ToString();
  if (text.find("LOCK") != std::string::npos || text.find("lock hold") != std::string::npos) {
    return Error(StatusCode::kFailedPrecondition,
                 "another mp-controller uses {}: stop it, or give this one another data_dir ({})",
                 folder_, text);
  }
  if (status.IsNoSpace()) {
    return Error(StatusCode::kUnavailable, "no space for the store in {}: {}", folder_, text);
  }
  return Damaged(text);
}

rocksdb::Status DurableRows::OpenDatabase(bool first) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(MakeOptions(first), fmt::format("{}/{}", folder_, kDatabaseName), &opened);
  db_.reset(opened);
  return status;
}

Status DurableRows::WriteError(const rocksdb::Status& status) const {
  return Error(StatusCode::kUnavailable, "the controller's store in {} cannot be written: {}",
               folder_, status.ToString());
}

// Opens the database again and takes the write that failed back: its caller was told that it did
// not happen, and has given its numbers to others since.
Status DurableRows::Mend() {
  if (Clock::System().Now() < mend_next_)
    return WriteError(rocksdb::Status::IOError("a write has failed; it is tried again soon"));
  mend_after_ = std::min(2 * mend_after_, kMendEveryMax);
  mend_next_ = Clock::System().Now() + mend_after_;
  db_.reset();
  RemoveRocksDbDrafts(fmt::format("{}/{}", folder_, kDatabaseName));
  rocksdb::Status status = OpenDatabase(false);
  if (status.ok()) status = db_->Write(Synced(), undo_.get());
  if (!status.ok()) return WriteError(status);
  undo_.reset();
  EMS_LOG(kInfo, "mp_controller", "the store in {} can be written again", folder_);
  return OkStatus();
}

DurableRows::DurableRows(std::string folder, std::string advice)
    : folder_(std::move(folder)), advice_(std::move(advice)) {}

DurableRows::~DurableRows() = default;

Result<std::unique_ptr<DurableRows>> DurableRows::Open(const std::string& folder,
                                                       std::string advice) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return Error(StatusCode::kUnavailable, "data_dir {} cannot be made: {}", folder,
                 error ? error.message() : "it is a file");
  }
  if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Error(StatusCode::kUnavailable, "data_dir {} is not writable for this user", folder);
  }
  EMS_RETURN_IF_ERROR(MakeDurableFolders(folder));
  const std::string marker = fmt::format("{}/{}", folder, kMarkerName);
  const bool first = !std::filesystem::exists(marker, error);
  bool kept = false;  // a ledger, as the marker says
  std::unique_ptr<DurableRows> rows(new DurableRows(folder, std::move(advice)));  // NOLINT: private
  if (!first) {
    EMS_ASSIGN_OR_RETURN(kept, rows->CheckMarker(marker));
  }
  // RocksDB would make it, too, but first warn that it is not there.
  if (first) std::filesystem::create_directory(fmt::format("{}/{}", folder, kDatabaseName), error);
  const rocksdb::Status status = rows->OpenDatabase(first);
  if (!status.ok()) return rows->OpenError(status);
  EMS_RETURN_IF_ERROR(rows->CheckLedger(kept));
  if (!kept) EMS_RETURN_IF_ERROR(WriteMarker(folder, marker));
  return rows;
}

Status DurableRows::CheckLedger(bool kept) {
  RowLedger found;
  std::optional<std::string> text;
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (it->key() == ToSlice(kLedgerKey)) {
      text = it->value().ToString();
    } else {
      found.Add(it->key().ToStringView(), it->value().ToStringView());
    }
  }
  if (!it->status().ok()) return Damaged(it->status().ToString());
  EMS_ASSIGN_OR_RETURN(note_, ChangeNote::Open(fmt::format("{}/{}", folder_, kNoteName)));
  if (!text) {
    if (kept || note_.last() > 0) return Lost("the row that counts all others");
    const rocksdb::Status put = db_->Put(Synced(), ToSlice(kLedgerKey), found.ToText());
    if (!put.ok()) return WriteError(put);
    ledger_ = found;
    return OkStatus();
  }
  const std::optional<RowLedger> ledger = RowLedger::FromText(*text);
  if (!ledger || ledger->sum != found.sum) return Lost("some of its rows");
  if (ledger->changes < note_.last()) {
    return Lost(
        fmt::format("the last {} of {} changes", note_.last() - ledger->changes, note_.last()));
  }
  ledger_ = *ledger;
  return OkStatus();
}

Status DurableRows::ForEach(const TakeRow& take) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (it->key() == ToSlice(kLedgerKey)) continue;
    const Status status = take(std::string_view(it->key().data(), it->key().size()),
                               std::string_view(it->value().data(), it->value().size()));
    if (!status.ok()) return Damaged(Message(status));
  }
  if (!it->status().ok()) return Damaged(it->status().ToString());
  return OkStatus();
}

Status DurableRows::Write(const RowChange& change) {
  EMS_RETURN_IF_ERROR(FailPointError("rows.write"));
  if (undo_) EMS_RETURN_IF_ERROR(Mend());
  rocksdb::WriteBatch batch;
  // Before the write: later the disk may refuse to be read, too.
  auto back = std::make_unique<rocksdb::WriteBatch>();
  RowLedger next = ledger_;
  ++next.changes;
  for (const auto& [key, value] : AfterOf(change)) {
    std::string old;
    const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), key, &old);
    if (got.ok()) {
      next.Take(key, old);
      back->Put(key, old);
    } else if (got.IsNotFound()) {
      back->Delete(key);
    } else {
      return WriteError(got);
    }
    if (value) {
      next.Add(key, *value);
      batch.Put(key, *value);
    } else {
      batch.Delete(key);
    }
  }
  batch.Put(ToSlice(kLedgerKey), next.ToText());
  back->Put(ToSlice(kLedgerKey), ledger_.ToText());
  const rocksdb::Status status = db_->Write(Synced(), &batch);
  if (status.ok()) {
    ledger_ = next;
    note_.Set(next.changes);
    return OkStatus();
  }
  undo_ = std::move(back);
  mend_after_ = kMendEvery;
  mend_next_ = Clock::System().Now() + mend_after_;
  return WriteError(status);
}

}  // namespace ems::controller
