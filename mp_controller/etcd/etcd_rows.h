#pragma once
// Rows of the controller in etcd: a RowStore of the one that leads.
//
// Each change is one transaction, on condition that this controller leads still (leader_lease.h)
// and that the ledger (rows/row_ledger.h) is as it left it: a write of an earlier leader that was
// on its way, or one of its own that it has given up, changes nothing. Of a write that gets no
// answer it is not known whether it has happened: the controller leads no more then, and whoever
// leads next reads what there is.
//
// etcd takes 1.5 MiB and 128 rows at a time. Of a change beyond kInlineBytesMax the larger values
// go first, in parts of kPartBytes, which the change then makes count; a change of more than
// kRowsMax rows is written down as one row, the journal, which makes all of it count, and carried
// out in steps, after a crash by the next leader.
//
// What the store adds up to is noted in data_dir by leader and followers (store_memory.h).
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/status.h"
#include "mp_controller/etcd/etcd_client.h"
#include "mp_controller/etcd/leader_lease.h"
#include "mp_controller/rows/row_ledger.h"
#include "mp_controller/rows/row_store.h"

namespace ems::controller {

// Threading: one thread (the loop of what it stores).
class EtcdRows final : public RowStore {
 public:
  static constexpr size_t kInlineBytesMax = 1 << 20;
  static constexpr size_t kPartBytes = 512 << 10;
  static constexpr size_t kRowsMax = 100;

  using Values = std::map<std::string, std::string>;  // rows by key
  struct Parts {
    EtcdClient* etcd;
    LeaderLease* lease;
    std::string base;  // what the keys begin with
    // Asked about what a start finds: how many changes there were, 0 for an empty store. An error
    // ends the start.
    std::function<Status(uint64_t changes, const Values& rows)> check = {};
    std::function<void(uint64_t changes)> note = {};  // told of each change that has happened
    std::function<void(Duration took)> written = {};  // of each call that writes
  };
  // All pointers must outlive the object.
  explicit EtcdRows(Parts parts) : parts_(std::move(parts)) {}

  // Reads all rows, once, before the first Write. Finishes what an earlier leader has left.
  Status ForEach(const TakeRow& take) override;
  Status Write(const RowChange& change) override;
  Status Damaged(std::string_view what) const override;

  // What one who does not lead can see of rows below `base`: how many changes there were, and the
  // row `key`, which is not in parts; 0 and empty: none. Errors: of EtcdClient
  struct Glance {
    uint64_t changes = 0;
    std::string value;
  };
  static Result<Glance> Look(EtcdClient* etcd, const std::string& base, const std::string& key,
                             Deadline deadline);

 private:
  // What is stored of a row: its hash, and where its value is, if that is in parts.
  struct Known {
    uint64_t sum = 0;
    std::string parts;  // key prefix; empty: the row itself
  };
  struct Found;

  Result<Found> ReadAll();
  Result<std::string> ValueIn(const Found& found, std::string_view stored,
                              std::string* parts_prefix) const;
  // Guarded by the lease alone: for what counts for nothing yet, or no more.
  Status Step(EtcdTransaction transaction);
  // Guarded by lease and ledger, which becomes `next`.
  Status CommitTo(const RowLedger& next, EtcdTransaction transaction);
  Status CarryOut(const EtcdTransaction& all);
  Status Send(const EtcdTransaction& transaction);
  Status DropOrphans(const Found& found);
  // Puts the value's parts; what the row itself says then.
  Result<std::string> PutParts(const std::string& key, std::string_view value, uint64_t change,
                               std::string* prefix);
  std::string RowKey(std::string_view key) const;

  const Parts parts_;
  RowLedger ledger_;
  std::string ledger_text_;  // as it is in etcd; empty: there is none
  std::map<std::string, Known> known_;
};

}  // namespace ems::controller
