#pragma once
// The one door to RocksDB in the controller: rows that survive kill -9. Every change is synced
// before Write returns.
//
// Invariant: a change that failed has not happened: it is taken back before the next one is made,
// if need be after the disk has come back. One that was acknowledged is there at the next start, or
// that is refused (row_ledger.h).
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "mp_controller/rows/row_ledger.h"
#include "mp_controller/rows/row_store.h"

namespace rocksdb {
class DB;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace ems::controller {

// Threading: one thread (the loop of what it stores).
class DurableRows final : public RowStore {
 public:
  // Opens the rows in `folder` and makes them when the folder has never held any. Cost: reads all
  // rows. `advice` is what
  // an operator may do about a damaged folder, as sentences.
  // Errors: kFailedPrecondition  another process has it open, or another version made it
  // kDataLoss  damaged: refuses rather than guesses    kUnavailable  the folder cannot be used
  static Result<std::unique_ptr<DurableRows>> Open(const std::string& folder, std::string advice);
  ~DurableRows() override;
  DurableRows(const DurableRows&) = delete;
  DurableRows& operator=(const DurableRows&) = delete;

  Status ForEach(const TakeRow& take) override;
  // Errors: kUnavailable  the disk refuses; a later call tries again, after a second at first and
  // every 15 s at most
  Status Write(const RowChange& change) override;
  Status Damaged(std::string_view what) const override;

 private:
  DurableRows(std::string folder, std::string advice);
  // Whether it says that there is a ledger. Errors: kFailedPrecondition  rows of another format
  Result<bool> CheckMarker(const std::string& path) const;
  // Begins the ledger where there is none, which must not be `kept`. Errors: kDataLoss  the rows
  // are not those that were written    kUnavailable
  Status CheckLedger(bool kept);
  Status Lost(std::string_view what) const;
  rocksdb::Status OpenDatabase(bool first);
  Status OpenError(const rocksdb::Status& status) const;
  Status WriteError(const rocksdb::Status& status) const;
  Status Mend();

  const std::string folder_;
  const std::string advice_;
  std::unique_ptr<rocksdb::DB> db_;
  RowLedger ledger_;  // of all changes that have happened
  ChangeNote note_;
  // Set by a write that failed, and may be there or not: what makes sure that it is not.
  std::unique_ptr<rocksdb::WriteBatch> undo_;
  TimePoint mend_next_{};
  Duration mend_after_{};
};

}  // namespace ems::controller
