#include "mp_server/ssd/group_commit.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/fail_point.h"
#include "mp_server/ssd/recovery.h"

namespace ems::ssd {

void GroupCommit::Free(WriteGroup* group) {
  EMS_CHECK(group->region()->writes_under_way > 0, "region {} has no write under way",
            group->region()->id);
  --group->region()->writes_under_way;
  group->Clear();
}

void GroupCommit::Fail(WriteGroup* group) {
  for (WriteJob& job : group->jobs()) End(&job, false, &WriterStats::failed_objects);
  Free(group);
}

void GroupCommit::End(WriteJob* job, bool ok, uint64_t WriterStats::*counter) {
  EMS_CHECK(job->object != nullptr, "a write job that is over ends again");
  options_.counts->Add(counter);
  if (job->from != nullptr) {  // whatever came of it: it is stored where the index says
    job->object.reset();
    EMS_CHECK(job->from->moves_under_way > 0, "region {} has no move under way", job->from->id);
    --job->from->moves_under_way;
    return;
  }
  if (job->moved && !ok) (void)options_.index->AbandonMove(job->name, job->sequence);
  options_.index->AbandonWrite(job->name, job->sequence);
  // What it was to replace has not counted since: without its own row, the old one must go.
  if (!ok) options_.deletes->DeleteOwed(job->name);
  job->object.reset();
  const uint64_t bytes = job->moved ? 0 : job->value_bytes;
  const uint64_t dirty = options_.dirty_bytes->fetch_sub(bytes, std::memory_order_relaxed);
  EMS_CHECK(dirty >= bytes, "{} bytes are written of {} dirty ones", bytes, dirty);
  if (ok) return options_.deletes->FinishDurable(std::exchange(job->ticket, nullptr));
  Finish(std::exchange(job->ticket, nullptr), false);
}

// Who waits for it to be durable waits for what took its place; if that is nothing, it has to be
// put again, and what it was to replace must go without it.
void GroupCommit::EndSuperseded(WriteJob* job) {
  if (job->from != nullptr) return End(job, true, &WriterStats::superseded_objects);
  const ObjectName name = job->name;
  TicketPtr ticket = std::exchange(job->ticket, nullptr);
  End(job, true, &WriterStats::superseded_objects);
  if (!options_.index->Find(name, false).pending) options_.deletes->DeleteOwed(name);
  if (ticket != nullptr) WaitDurable(name, std::move(ticket));
}

void GroupCommit::WaitDurable(const ObjectName& name, TicketPtr ticket) {
  waiting_.push_back({name, std::move(ticket)});
}

// What is pending is waited for; what is stored, is there with the next commit.
void GroupCommit::LookAtWaiting(bool last) {
  std::erase_if(waiting_, [&](Waiting& one) {
    const SsdIndex::Found found = options_.index->Find(one.name, false);
    if (found.pending && !last) {
      options_.held_back->Hurry(one.name);
      return false;
    }
    Region* region = found.stored ? options_.log->Find(found.row.region) : nullptr;
    if (region != nullptr && !options_.rows->broken() && SyncRegion(region)) {
      options_.deletes->FinishAtCommit(std::move(one.ticket));  // its row may not be synced yet
    } else {
      Finish(one.ticket, false);
    }
    return true;
  });
}

void GroupCommit::FailWaiting() {
  for (const Waiting& one : std::exchange(waiting_, {})) Finish(one.ticket, false);
}

// False: what was written there since the last sync is lost, nobody knows how much of it. Nothing
// more is added to the region, and those members are dropped; older ones are on the disk.
bool GroupCommit::SyncRegion(Region* region) {
  if (!region->unsynced) return true;
  EMS_FAIL_POINT("ssd.before_sync");
  const Status synced = options_.log->options().files->Sync(region->fd.get());
  EMS_FAIL_POINT("ssd.after_sync");
  region->unsynced = false;
  const std::vector<Hash128> members = std::exchange(region->unsynced_members, {});
  if (synced.ok()) return true;
  region->state = RegionState::kBad;
  region->lost_writes = true;
  options_.health->Degrade(std::string(Message(synced)));
  for (const Hash128& hash : members) {
    const SsdIndex::Reclaimed it =
        options_.index->Reclaim({region->ns, hash}, region->sequence, false);
    if (it.fate == SsdIndex::Fate::kDropped) options_.commit->Delete(it.owed, nullptr, false);
  }
  return false;
}

bool GroupCommit::IsDurable(const WriteGroup& group) const {
  return group.durable() && !options_.space->relaxed_sync(group.region()->ns);
}

// Whatever the namespace relaxes by now: what moves may have been promised to be durable before.
bool GroupCommit::MustSync(WriteGroup* group) const {
  const bool moves = std::any_of(group->jobs().begin(), group->jobs().end(),
                                 [](const WriteJob& job) { return job.from != nullptr; });
  return group->region()->unsynced && (moves || IsDurable(*group));
}

// False: a sync has failed, and what it was for is over.
bool GroupCommit::SyncLanded() {
  bool all = true;
  const std::vector<WriteGroup*> landed = std::exchange(landed_, {});
  for (WriteGroup* group : landed) {
    Region* region = group->region();
    if (MustSync(group)) all = SyncRegion(region) && all;
    if (region->lost_writes) {
      Fail(group);
      continue;
    }
    if (IsDurable(*group)) options_.commit->RequireSync();
    landed_.push_back(group);
  }
  // A sync that failed for a later group has lost the earlier ones, too.
  std::erase_if(landed_, [this](WriteGroup* group) {
    if (!group->region()->lost_writes) return false;
    Fail(group);
    return true;
  });
  return all;
}

bool GroupCommit::Counts(const WriteJob& job) const {
  if (job.from != nullptr)
    return options_.index->LiesIn(job.name, job.sequence, job.from->sequence);
  return options_.index->Counts(job.name, job.sequence) && job.object->current();
}

bool GroupCommit::WriteRows() {
  options_.counts->Add(&WriterStats::commits);
  if (options_.commit->synced()) options_.counts->Add(&WriterStats::synced_commits);
  EMS_FAIL_POINT("ssd.before_commit");
  const Status written = options_.commit->Write();
  EMS_FAIL_POINT("ssd.after_commit");
  if (!written.ok()) options_.health->Degrade(std::string(Message(written)));
  return written.ok();
}

bool GroupCommit::Commit() {
  const bool long_syncs = std::any_of(landed_.begin(), landed_.end(),
                                      [this](WriteGroup* group) { return MustSync(group); });
  bool all = !long_syncs || !options_.commit->awaited() || WriteRows();
  all = SyncLanded() && all;
  if (landed_.empty() && options_.commit->empty()) return all;
  for (WriteGroup* group : landed_) {
    for (WriteJob& job : group->jobs()) {
      if (Counts(job)) {
        // With this row the name is owed nothing any more, though an unsynced one may be lost.
        if (options_.index->OwedTo(job.name)) options_.commit->RequireSync();
        options_.commit->Put(job.name, job.row);
      } else {
        EndSuperseded(&job);
      }
    }
  }
  const bool written = WriteRows();
  for (WriteGroup* group : std::exchange(landed_, {})) EndGroup(group, written);
  return written && all;
}

Status GroupCommit::WriteAllAgain() {
  if (options_.rows->broken()) {
    EMS_RETURN_IF_ERROR(options_.rows->Reopen(true));
    EMS_RETURN_IF_ERROR(WriteBack(options_.index, options_.log->options(),
                                  options_.deletes->metas(), options_.rows));
  }
  for (const OwedDelete& owed : options_.index->Owed())
    options_.commit->Delete(owed, nullptr, true);
  options_.commit->PutMeta("healed", "");
  options_.commit->RequireSync();
  return options_.commit->Write();
}

void GroupCommit::EndGroup(WriteGroup* group, bool written) {
  Region* region = group->region();
  for (WriteJob& job : group->jobs()) {
    if (job.object == nullptr) continue;  // superseded
    if (!written) {
      // Its row may be there, or not; either one of a move is good.
      if (job.from == nullptr) options_.index->Owe(job.name);
      End(&job, false, &WriterStats::failed_objects);
      continue;
    }
    const bool moves = job.from != nullptr;
    const bool counts = moves ? options_.index->Move(job.name, job.row, job.from->sequence)
                              : options_.index->Commit(job.name, job.row);
    if (counts) {
      region->members.push_back(job.name.hash);
      if (region->unsynced) region->unsynced_members.push_back(job.name.hash);
    }
    options_.counts->Add(&WriterStats::written_bytes, job.value_bytes);
    if (job.quiet) options_.counts->Add(&WriterStats::quiet_objects);
    const bool moved = moves || job.moved;
    End(&job, true, moved ? &WriterStats::moved_objects : &WriterStats::written_objects);
  }
  Free(group);
}

}  // namespace ems::ssd
