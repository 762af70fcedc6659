#include "mp_server/ssd/row_commit.h"

namespace ems::ssd {
namespace {

constexpr size_t kUnsyncedMax = 8192;

}  // namespace

void RowCommit::Delete(const OwedDelete& owed, TicketPtr ticket, bool sync) {
  if (const OwedDelete now = index_->OwedTo(owed.name); now) {
    batch_.Delete(now.name);
    deleted_.push_back(now);
  } else {
    sync = sync || ticket != nullptr;  // what has taken its place must be there for good
  }
  sync_ = sync_ || sync || deleted_unsynced_.size() > kUnsyncedMax;
  if (ticket != nullptr) tickets_.push_back(std::move(ticket));
}

Status RowCommit::Write() {
  std::vector<OwedDelete> deleted = std::exchange(deleted_, {});
  const std::vector<TicketPtr> tickets = std::exchange(tickets_, {});
  const bool sync = std::exchange(sync_, false);
  Status written;
  if (batch_.count() > 0) {
    written = rows_->Write(batch_, sync);
  } else if (sync) {
    written = rows_->SyncLog();
  }
  batch_.Clear();
  deleted_unsynced_.insert(deleted_unsynced_.end(), deleted.begin(), deleted.end());
  if (!written.ok()) deleted_unsynced_.clear();  // they stay owed
  if (written.ok() && sync) index_->EndOwing(std::exchange(deleted_unsynced_, {}));
  for (const TicketPtr& ticket : tickets) Finish(ticket, written.ok());
  return written;
}

}  // namespace ems::ssd
