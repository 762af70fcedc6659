#pragma once
// Deletes of rows that must become durable, and the meta rows that say that they are.
//
// A row of a value that does not count any more goes before anybody is told that it is gone. While
// the index refuses, the name stays owed a delete (ssd_index.h). Until the meta rows of a Forget
// are durable a restart goes by the old ones, and drops by them what was put since: meanwhile
// nobody is told that anything cannot be lost.
//
// Bound: kDeletesStep rows a step; kHeldMax tickets wait for meta rows.
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/row_commit.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

// Threading: one thread (the tier's log thread).
class DeleteLog final {
 public:
  static constexpr uint32_t kDeletesStep = 8192;
  static constexpr size_t kHeldMax = 1 << 16;
  using Metas = std::vector<std::pair<std::string, std::string>>;

  // All must outlive this.
  DeleteLog(const RegionIndex* rows, SsdIndex* index, RowCommit* commit)
      : rows_(rows), index_(index), commit_(commit) {}

  // Goes with the next commit, which is a synced one whatever the namespace: one that relaxes its
  // syncs may lose new values, and keeps no old ones. While the index refuses the ticket fails.
  void Delete(const OwedDelete& owed, TicketPtr ticket);
  // The same for what the name is owed by now, if anything.
  void DeleteOwed(const ObjectName& name);
  // Deletes without hurry, and then writes meta rows, all at once.
  void Forget(std::vector<OwedDelete> owed, Metas metas);
  // The next part of what is to be forgotten: others wait for what they have put.
  void Step();
  // Step has something to do.
  bool pending() const { return !forgets_.empty() && !rows_->broken(); }
  bool empty() const { return forgets_.empty(); }

  // Finishes the ticket as done, now or with the meta rows that are still to come.
  void FinishDurable(TicketPtr ticket);
  // The same once the next commit, a synced one, is there.
  void FinishAtCommit(TicketPtr ticket);
  // There will be no more meta rows.
  void FailHeld();
  // As written by Forget so far.
  const std::map<std::string, std::string>& metas() const { return metas_; }

 private:
  struct Forgetting {
    std::vector<OwedDelete> owed;
    Metas metas;
    std::vector<TicketPtr> held;  // finished with the meta rows
  };
  Forgetting* LastWithMetas();

  const RegionIndex* const rows_;
  SsdIndex* const index_;
  RowCommit* const commit_;
  std::deque<Forgetting> forgets_;
  std::map<std::string, std::string> metas_;
};

}  // namespace ems::ssd
