#include "mp_server/ssd/delete_log.h"

#include <algorithm>

namespace ems::ssd {

void DeleteLog::Delete(const OwedDelete& owed, TicketPtr ticket) {
  if (rows_->broken()) return Finish(ticket, false);  // it stays owed
  commit_->Delete(owed, std::move(ticket), true);
}

void DeleteLog::DeleteOwed(const ObjectName& name) {
  if (const OwedDelete owed = index_->OwedTo(name); owed) Delete(owed, nullptr);
}

void DeleteLog::Forget(std::vector<OwedDelete> owed, Metas metas) {
  forgets_.push_back({std::move(owed), std::move(metas), {}});
}

void DeleteLog::Step() {
  if (rows_->broken()) return FailHeld();
  if (forgets_.empty()) return;
  Forgetting& first = forgets_.front();
  for (uint32_t i = 0; i < kDeletesStep && !first.owed.empty(); ++i) {
    commit_->Delete(first.owed.back(), nullptr, false);
    first.owed.pop_back();
  }
  if (!first.owed.empty()) return;
  commit_->RequireSync();  // until then each of them is owed
  for (auto& [name, value] : first.metas) {
    commit_->PutMeta(name, value);
    metas_[name] = std::move(value);
  }
  for (TicketPtr& ticket : first.held) commit_->Wait(std::move(ticket));
  forgets_.pop_front();
}

DeleteLog::Forgetting* DeleteLog::LastWithMetas() {
  const auto last = std::find_if(forgets_.rbegin(), forgets_.rend(),
                                 [](const Forgetting& one) { return !one.metas.empty(); });
  return last == forgets_.rend() ? nullptr : &*last;
}

void DeleteLog::FinishDurable(TicketPtr ticket) {
  if (ticket == nullptr) return;
  Forgetting* const forget = LastWithMetas();
  if (forget != nullptr && forget->held.size() < kHeldMax) {
    forget->held.push_back(std::move(ticket));
  } else {
    Finish(ticket, forget == nullptr);
  }
}

// The meta rows come with a sync of their own.
void DeleteLog::FinishAtCommit(TicketPtr ticket) {
  if (LastWithMetas() != nullptr) return FinishDurable(std::move(ticket));
  commit_->Wait(std::move(ticket));
}

void DeleteLog::FailHeld() {
  for (Forgetting& one : forgets_) {
    for (const TicketPtr& ticket : std::exchange(one.held, {})) Finish(ticket, false);
  }
}

}  // namespace ems::ssd
