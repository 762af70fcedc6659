#pragma once
// The next commit to the durable index: rows to put and to delete, and the tickets of callers that
// wait for it.
//
// A name that is owed a delete (ssd_index.h) stays so until a synced Write here has succeeded.
#include <utility>
#include <vector>

#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

// Threading: one thread (the tier's log thread).
class RowCommit final {
 public:
  RowCommit(RegionIndex* rows, SsdIndex* index) : rows_(rows), index_(index) {}

  void Put(const ObjectName& name, const Row& row) { batch_.Put(name, row); }
  // Deletes what the name is owed by now, which may be more than `owed`, or nothing: it has been
  // given another value, and that is there. `ticket` may be null.
  void Delete(const OwedDelete& owed, TicketPtr ticket, bool sync);
  void PutMeta(std::string_view name, std::string_view value) { batch_.PutMeta(name, value); }
  // Finishes with the next Write, which is a synced one.
  void Wait(TicketPtr ticket) {
    tickets_.push_back(std::move(ticket));
    sync_ = true;
  }
  void RequireSync() { sync_ = true; }

  bool empty() const { return batch_.count() == 0 && tickets_.empty() && !sync_; }
  bool synced() const { return sync_; }
  // A caller waits for it.
  bool awaited() const { return !tickets_.empty(); }
  uint32_t count() const { return batch_.count(); }
  // All of it, or an error; empties this either way. Errors: kUnavailable
  Status Write();

 private:
  RegionIndex* const rows_;
  SsdIndex* const index_;
  RowBatch batch_;
  std::vector<OwedDelete> deleted_;
  std::vector<OwedDelete> deleted_unsynced_;  // by earlier batches
  std::vector<TicketPtr> tickets_;
  bool sync_ = false;
};

}  // namespace ems::ssd
