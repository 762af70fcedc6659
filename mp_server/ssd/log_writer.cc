#include "mp_server/ssd/log_writer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/fail_point.h"
#include "common/logging.h"

namespace ems::ssd {
namespace {

// Small objects wait for each other so long, so that less of a block is padding.
constexpr Duration kPackPatience = std::chrono::milliseconds(10);
constexpr uint64_t kPackBytes = 256 * kKiB;
constexpr Duration kLookAgain = std::chrono::microseconds(2500);
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kStopPatience = std::chrono::seconds(5);
constexpr Duration kComplainEvery = std::chrono::seconds(60);

}  // namespace

std::string_view TierStateName(TierState state) {
  switch (state) {
    case TierState::kOk:
      return "ok";
    case TierState::kDegraded:
      return "degraded";
    case TierState::kOffline:
      break;
  }
  return "offline";
}

class LogWriter::Group final : public WriteGroup {
 public:
  explicit Group(LogWriter* writer) : writer_(writer) {}
  void OnDone(int64_t got) override {
    result = got;
    auto queue = writer_->queue_.Lock();
    queue->done.push_back(this);
    writer_->wakeup_.notify_one();  // under the lock: the writer may end right after
  }
  int64_t result = 0;

 private:
  LogWriter* const writer_;
};

LogWriter::LogWriter(Options options)
    : options_(std::move(options)),
      next_sequence_(options_.next_sequence),
      space_(options_.log),
      commit_(options_.rows, options_.index) {
  counters_.regions.store(options_.log->regions().size(), std::memory_order_relaxed);
  thread_ = Thread("ems-ssd-log", [this] { Run(); });
}

LogWriter::~LogWriter() {
  {
    auto queue = queue_.Lock();
    queue->stopping = true;
    queue->give_up_at = options_.clock->Now() + kStopPatience;
  }
  wakeup_.notify_one();
  thread_.Join();
}

// --- Any thread.

bool LogWriter::HasRoomFor(uint64_t value_bytes) const {
  return state() == TierState::kOk &&
         dirty_bytes_.load(std::memory_order_relaxed) + value_bytes <= options_.dirty_bytes_max;
}

bool LogWriter::Enqueue(Op op) {
  auto queue = queue_.Lock();
  const bool full = queue->ops.size() >= kOpsMax && op.kind != OpKind::kForget;  // one a view
  if (queue->stopping || full) return false;
  queue->ops.push_back(std::move(op));
  if (queue->ops.size() == 1) wakeup_.notify_one();
  return true;
}

TicketPtr LogWriter::Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                         std::function<void()> wake) {
  const uint64_t sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t bytes = object->value().size();
  const SsdIndex::Begun begun = options_.index->BeginWrite(name, sequence, *object);
  const OwedDelete owed = begun.owed;
  if (!begun.begun) counters_.superseded.fetch_add(1, std::memory_order_relaxed);
  if (!begun.begun && !durable) return MakeForgotten(name, std::move(wake));
  TicketPtr ticket;
  if (durable || owed) ticket = std::make_shared<Ticket>(std::move(wake));
  if (!begun.begun) {
    ticket->FailAtOnce();
    return ticket;
  }
  // Counted first, so that many at once do not all find the last room.
  const uint64_t before = dirty_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const bool room = state() == TierState::kOk && before + bytes <= options_.dirty_bytes_max;
  if (owed && !(durable && room)) {
    // The row of what was there goes first: the new one may never get there.
    Op remove;
    remove.kind = OpKind::kRemove;
    remove.owed = owed;
    if (!durable) remove.job.ticket = ticket;
    if (!Enqueue(std::move(remove)) && !durable) ticket->FailAtOnce();
  }
  if (room) {
    Op op;
    op.job.name = name;
    op.job.sequence = sequence;
    op.job.value_bytes = bytes;
    op.job.durable = durable;
    op.job.object = std::move(object);
    if (durable) op.job.ticket = ticket;
    if (Enqueue(std::move(op))) return ticket;
  }
  dirty_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  options_.index->AbandonWrite(name, sequence);
  counters_.shed.fetch_add(1, std::memory_order_relaxed);
  if (durable) ticket->FailAtOnce();
  return ticket;
}

TicketPtr LogWriter::Remove(const ObjectName& name, std::function<void()> wake) {
  Op op;
  op.kind = OpKind::kRemove;
  op.owed = options_.index->Drop(name);
  if (!op.owed) return nullptr;
  TicketPtr ticket = op.job.ticket = std::make_shared<Ticket>(std::move(wake));
  if (!Enqueue(std::move(op))) ticket->FailAtOnce();
  return ticket;
}

TicketPtr LogWriter::MakeDurable(const ObjectName& name, std::function<void()> wake) {
  Op op;
  op.kind = OpKind::kDurable;
  op.job.name = name;
  TicketPtr ticket = op.job.ticket = std::make_shared<Ticket>(std::move(wake));
  if (!Enqueue(std::move(op))) ticket->FailAtOnce();
  return ticket;
}

TicketPtr LogWriter::MakeForgotten(const ObjectName& name, std::function<void()> wake) {
  Op op;
  op.kind = OpKind::kRemove;
  op.owed = options_.index->OwedTo(name);
  if (!op.owed) return nullptr;
  TicketPtr ticket = op.job.ticket = std::make_shared<Ticket>(std::move(wake));
  if (!Enqueue(std::move(op))) ticket->FailAtOnce();
  return ticket;
}

void LogWriter::Forget(std::vector<OwedDelete> owed, Metas metas) {
  Op op;
  op.kind = OpKind::kForget;
  op.all_owed = std::move(owed);
  op.metas = std::move(metas);
  (void)Enqueue(std::move(op));  // refused while stopping alone: then no meta row is written
}

void LogWriter::SetLimits(std::vector<NamespaceLimits> limits) {
  {
    auto queue = queue_.Lock();
    queue->limits = std::move(limits);
  }
  wakeup_.notify_one();
}

std::string LogWriter::state_reason() {
  auto reason = reason_.Lock();
  return *reason;
}

WriterStats LogWriter::stats() const {
  const auto get = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  WriterStats stats;
  stats.written_objects = get(counters_.written_objects);
  stats.written_bytes = get(counters_.written_bytes);
  stats.disk_bytes = get(counters_.disk_bytes);
  stats.shed_objects = get(counters_.shed);
  stats.superseded_objects = get(counters_.superseded);
  stats.failed_objects = get(counters_.failed);
  stats.commits = get(counters_.commits);
  stats.synced_commits = get(counters_.synced_commits);
  stats.reclaimed_regions = get(counters_.reclaimed_regions);
  stats.reclaimed_objects = get(counters_.reclaimed_objects);
  stats.moved_objects = get(counters_.moved);
  stats.degraded_times = get(counters_.degraded);
  stats.dirty_bytes = get(dirty_bytes_);
  stats.regions = get(counters_.regions);
  stats.index_bytes = get(counters_.index_bytes);
  return stats;
}

// --- The log thread.

void LogWriter::Run() {
  while (Step()) {
  }
  // Nobody will write these any more.
  {
    auto queue = queue_.Lock();
    for (Op& op : queue->ops) ops_.push_back(std::move(op));
    queue->ops.clear();
  }
  for (Op& op : ops_) {
    if (op.job.object != nullptr) {
      EndJob(&op.job, false, &counters_.failed);
    } else {
      Finish(op.job.ticket, false);
    }
  }
  for (WriteJob& job : moves_) EndJob(&job, false, &counters_.failed);
  for (Op& op : waiting_) Finish(op.job.ticket, false);
  for (Group* group : {packing_, filling_}) {
    if (group != nullptr) FailGroup(group);
  }
  Commit();  // what those were to replace must not come back
  FailHeld();
  if (!options_.rows->broken()) (void)options_.rows->SyncLog();  // the machine may go down next
}

bool LogWriter::Step() {
  TakeNews();
  Heal();
  LookAtWaiting();
  Work();
  ForgetSome();
  Commit();
  CountDisk();
  if (!stopping_ || under_way_ > 0) return true;
  auto queue = queue_.Lock();
  const bool forgets = !forgets_.empty() && !options_.rows->broken();
  const bool idle = ops_.empty() && moves_.empty() && !forgets && packing_ == nullptr &&
                    queue->ops.empty() && queue->done.empty();
  return !idle && !TimeIsOver();
}

void LogWriter::TakeNews() {
  std::vector<Group*> done;
  std::optional<std::vector<NamespaceLimits>> limits;
  {
    auto queue = queue_.Lock();
    const bool soon = packing_ != nullptr || !waiting_.empty() || !moves_.empty() ||
                      !forgets_.empty() || (!ops_.empty() && CanWork()) ||
                      (stopping_ && under_way_ == 0);
    const bool forgets = !forgets_.empty() && !options_.rows->broken();
    const Duration patience = forgets ? Duration::zero() : soon ? kLookAgain : kTick;
    queue.WaitFor(wakeup_, patience, [&](const Queue& q) {
      return !q.done.empty() || q.limits || (q.stopping && !stopping_) ||
             (ops_.empty() && !q.ops.empty() && CanWork());
    });
    done.swap(queue->done);
    limits.swap(queue->limits);
    stopping_ = queue->stopping;
    give_up_at_ = queue->give_up_at;
    if (ops_.empty()) ops_.swap(queue->ops);
  }
  if (limits) space_.SetLimits(*limits);
  for (Group* group : done) OnGroupDone(group);
}

bool LogWriter::TimeIsOver() const { return stopping_ && options_.clock->Now() >= give_up_at_; }

void LogWriter::Work() {
  if (TimeIsOver()) return;
  while (!moves_.empty() && CanWork() && HandlePut(&moves_.front())) moves_.pop_front();
  while (!ops_.empty() && CanWork()) {
    if (ops_.front().kind == OpKind::kPut) {
      if (!HandlePut(&ops_.front().job)) break;
    } else {
      Handle(std::move(ops_.front()));
    }
    ops_.pop_front();
  }
  if (under_way_ < kWriteDepth) Submit(&filling_);
  if (packing_ == nullptr || under_way_ >= kWriteDepth) return;
  const bool due = packing_->durable() || packing_->bytes() >= kPackBytes || stopping_ ||
                   options_.clock->Now() - packing_since_ >= kPackPatience;
  if (due) Submit(&packing_);
}

void LogWriter::Handle(Op op) {
  switch (op.kind) {
    case OpKind::kRemove:
      if (options_.rows->broken()) {
        Finish(op.job.ticket, false);  // it stays owed
      } else {
        commit_.Delete(op.owed, std::move(op.job.ticket), !space_.relaxed_sync(op.owed.name.ns));
      }
      return;
    case OpKind::kDurable:
      waiting_.push_back(std::move(op));
      return;
    case OpKind::kForget:
      forgets_.push_back(std::move(op));
      return;
    case OpKind::kPut:
      return;
  }
}

// kDurable of something pending waits for that; of something stored, for the next commit.
void LogWriter::LookAtWaiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const SsdIndex::Found found = options_.index->Find(it->job.name, false);
    if (found.pending && !stopping_) {
      ++it;
      continue;
    }
    Region* region = found.stored ? options_.log->Find(found.row.region) : nullptr;
    if (region != nullptr && !options_.rows->broken() && SyncRegion(region)) {
      // The row may be there without a sync: the meta rows come with one.
      if (Op* const forget = LastWithMetas(); forget == nullptr) {
        commit_.Wait(std::move(it->job.ticket));
      } else {
        FinishDurable(std::move(it->job.ticket));
      }
    } else {
      Finish(it->job.ticket, false);
    }
    it = waiting_.erase(it);
  }
}

bool LogWriter::HandlePut(WriteJob* job) {
  if (!options_.index->Counts(job->name, job->sequence) || !job->object->current()) {
    EndSuperseded(job);
    return true;
  }
  if (state() != TierState::kOk) {
    EndJob(job, false, &counters_.shed);
    return true;
  }
  const RecordShape shape(job->value_bytes, job->object->key().size());
  if (options_.index->objects() >= options_.objects_max) {  // small values: rows run out first
    if (packing_ != nullptr) Submit(&packing_);
    if (filling_ != nullptr) Submit(&filling_);
    const Result<RegionSpace::Choice> full = space_.NextToGo();
    if (full.ok()) Reclaim(full->region);
    if (!full.ok() && full.status().code() == StatusCode::kUnavailable) return false;
    if (!full.ok()) {
      EndJob(job, false, &counters_.shed);
      return true;
    }
  }
  const Result<Region*> region = RoomFor(job->name.ns, shape.record_bytes());
  if (region.ok()) {
    Group** group = GroupFor(*region, shape);
    (*group)->Add(std::move(*job), shape, options_.log->options().store_id);
    return true;
  }
  if (region.status().code() == StatusCode::kUnavailable) return false;
  EndJob(job, false, &counters_.failed);
  return true;
}

uint64_t LogWriter::Unsubmitted(const Region* region) const {
  uint64_t bytes = 0;
  for (const Group* group : {packing_, filling_}) {
    if (group != nullptr && group->region() == region) bytes += group->bytes();
  }
  return bytes;
}

Result<Region*> LogWriter::RoomFor(NamespaceRef ns, uint64_t bytes) {
  const uint64_t limit = space_.FillLimit(ns);
  // The block that a group of packed records ends in is filled up.
  const uint64_t need = RoundUp(bytes, kBlockBytes) + kBlockBytes;
  if (kBlockBytes + need > limit) {
    return Error(StatusCode::kOutOfRange, "a record of {} does not fit a region of {}",
                 FormatBytes(bytes), FormatBytes(limit));
  }
  Region* open = space_.OpenOf(ns);
  if (open != nullptr && open->fill_bytes + Unsubmitted(open) + need <= limit) return open;
  if (open != nullptr) {
    if (filling_ != nullptr && filling_->region() == open) Submit(&filling_);
    if (packing_ != nullptr && packing_->region() == open) Submit(&packing_);
    space_.Seal(ns);
  }
  const Result<RegionSpace::Choice> next = space_.Next(ns);
  if (!space_.disk().ok() && options_.clock->Now() >= complain_at_) {
    complain_at_ = options_.clock->Now() + kComplainEvery;
    EMS_LOG(kWarn, "mp_server", "SSD tier: no new region, going on with {}: {}",
            options_.log->regions().size(), Message(space_.disk()));
  }
  if (!next.ok()) {
    if (next.status().code() != StatusCode::kUnavailable && !space_.disk().ok())
      Degrade(std::string(Message(space_.disk())));
    return next.status();
  }
  const RegionSpace::Choice choice = *next;
  if (choice.surplus != nullptr) Reclaim(choice.surplus);
  if (choice.reclaim) Reclaim(choice.region);
  EMS_FAIL_POINT("ssd.before_begin");
  if (const Status begun = options_.log->Begin(choice.region, ns); !begun.ok()) {
    Degrade(std::string(Message(begun)));
    return Error(StatusCode::kResourceExhausted, "{}", Message(begun));
  }
  choice.region->unsynced = true;
  counters_.disk_bytes.fetch_add(kBlockBytes, std::memory_order_relaxed);
  counters_.regions.store(options_.log->regions().size(), std::memory_order_relaxed);
  if (options_.on_region) options_.on_region(choice.region->id, choice.region->fd.get());
  space_.SetOpen(ns, choice.region);
  return choice.region;
}

LogWriter::Group** LogWriter::GroupFor(Region* region, const RecordShape& shape) {
  Group** group = shape.aligned ? &filling_ : &packing_;
  if (*group != nullptr && ((*group)->region() != region || !(*group)->Fits(shape))) Submit(group);
  if (*group != nullptr) return group;
  if (idle_groups_.empty()) {
    groups_.push_back(std::make_unique<Group>(this));
    idle_groups_.push_back(groups_.back().get());
  }
  *group = idle_groups_.back();
  idle_groups_.pop_back();
  (*group)->Start(region, shape.aligned);
  ++region->writes_under_way;
  if (!shape.aligned) packing_since_ = options_.clock->Now();
  return group;
}

void LogWriter::Submit(Group** which) {
  Group* group = std::exchange(*which, nullptr);
  if (group == nullptr) return;
  counters_.disk_bytes.fetch_add(group->bytes(), std::memory_order_relaxed);
  group->Place();
  ++under_way_;
  EMS_FAIL_POINT("ssd.before_write");
  options_.io->Submit(group);
}

void LogWriter::OnGroupDone(Group* group) {
  --under_way_;
  EMS_FAIL_POINT("ssd.after_write");
  Region* region = group->region();
  region->unsynced = true;
  if (group->result == static_cast<int64_t>(group->bytes())) {
    landed_.push_back(group);
    if (state() == TierState::kOk) backoff_ = Duration::zero();
    return;
  }
  const int error = group->result < 0 ? static_cast<int>(-group->result) : EIO;
  region->state = RegionState::kBad;
  Degrade(fmt::format("cannot write to region {}: {}", region->id, fabric::ErrnoText(error)));
  FailGroup(group);
}

void LogWriter::FailGroup(Group* group) {
  for (WriteJob& job : group->jobs()) EndJob(&job, false, &counters_.failed);
  Recycle(group);
}

void LogWriter::Recycle(Group* group) {
  --group->region()->writes_under_way;
  group->Clear();
  idle_groups_.push_back(group);
}

// Something else has begun to count, or the key leads elsewhere by now, or nowhere. Who waits for
// it to be durable waits for what took its place; if that is nothing, it has to be put again, and
// what it was to replace must go without it.
void LogWriter::EndSuperseded(WriteJob* job) {
  Op successor;
  successor.kind = OpKind::kDurable;
  successor.job.name = job->name;
  successor.job.ticket = std::exchange(job->ticket, nullptr);
  EndJob(job, true, &counters_.superseded);
  const OwedDelete owed = options_.index->OwedTo(successor.job.name);
  if (owed && !options_.index->Find(successor.job.name, false).pending && !options_.rows->broken())
    commit_.Delete(owed, nullptr, true);
  if (successor.job.ticket != nullptr) waiting_.push_back(std::move(successor));
}

void LogWriter::EndJob(WriteJob* job, bool ok, std::atomic<uint64_t>* counter) {
  counter->fetch_add(1, std::memory_order_relaxed);
  if (job->moved && !ok) (void)options_.index->AbandonMove(job->name, job->sequence);
  options_.index->AbandonWrite(job->name, job->sequence);
  // What it was to replace has not counted since: without its own row, the old one must go.
  if (!ok && !options_.rows->broken()) {
    const OwedDelete owed = options_.index->OwedTo(job->name);
    if (owed) commit_.Delete(owed, nullptr, true);
  }
  job->object.reset();
  if (!job->moved) dirty_bytes_.fetch_sub(job->value_bytes, std::memory_order_relaxed);
  if (ok) return FinishDurable(std::exchange(job->ticket, nullptr));
  Finish(std::exchange(job->ticket, nullptr), false);
}

// False: what was written there since the last sync is lost, nobody knows how much of it. Nothing
// more is added to the region, and those members are dropped; older ones are on the disk.
bool LogWriter::SyncRegion(Region* region) {
  if (!region->unsynced) return true;
  EMS_FAIL_POINT("ssd.before_sync");
  const Status synced = options_.log->options().files->Sync(region->fd.get());
  EMS_FAIL_POINT("ssd.after_sync");
  region->unsynced = false;
  const std::vector<Hash128> members = std::exchange(region->unsynced_members, {});
  if (synced.ok()) return true;
  region->state = RegionState::kBad;
  region->lost_writes = true;
  Degrade(std::string(Message(synced)));
  for (const Hash128& hash : members) {
    const SsdIndex::Reclaimed it =
        options_.index->Reclaim({region->ns, hash}, region->sequence, false);
    if (it.fate == SsdIndex::Fate::kDropped) commit_.Delete(it.owed, nullptr, false);
  }
  return false;
}

// Makes the records durable whose rows somebody waits for.
void LogWriter::SyncRegions() {
  const std::vector<Group*> landed = std::exchange(landed_, {});
  for (Group* group : landed) {
    Region* region = group->region();
    const bool durable = group->durable() && !space_.relaxed_sync(region->ns);
    if (durable) SyncRegion(region);
    if (region->lost_writes) {
      FailGroup(group);
      continue;
    }
    if (durable) commit_.RequireSync();
    landed_.push_back(group);
  }
  // A sync that failed for a later group has lost the earlier ones, too.
  std::erase_if(landed_, [this](Group* group) {
    if (!group->region()->lost_writes) return false;
    FailGroup(group);
    return true;
  });
}

void LogWriter::Commit() {
  SyncRegions();
  if (landed_.empty() && commit_.empty()) return;
  for (Group* group : landed_) {
    for (WriteJob& job : group->jobs()) {
      if (options_.index->Counts(job.name, job.sequence) && job.object->current()) {
        commit_.Put(job.name, job.row);
      } else {
        EndSuperseded(&job);
      }
    }
  }
  counters_.commits.fetch_add(1, std::memory_order_relaxed);
  if (commit_.synced()) counters_.synced_commits.fetch_add(1, std::memory_order_relaxed);
  EMS_FAIL_POINT("ssd.before_commit");
  const Status written = commit_.Write();
  EMS_FAIL_POINT("ssd.after_commit");
  for (Group* group : landed_) {
    for (WriteJob& job : group->jobs()) {
      if (job.object == nullptr) continue;  // superseded
      if (!written.ok()) {
        options_.index->Owe(job.name);  // its row may be there, or not
        EndJob(&job, false, &counters_.failed);
        continue;
      }
      if (options_.index->Commit(job.name, job.row)) {
        Region* region = group->region();
        region->members.push_back(job.name.hash);
        if (region->unsynced) region->unsynced_members.push_back(job.name.hash);
      }
      counters_.written_bytes.fetch_add(job.value_bytes, std::memory_order_relaxed);
      EndJob(&job, true, job.moved ? &counters_.moved : &counters_.written_objects);
    }
    Recycle(group);
  }
  landed_.clear();
  if (!written.ok()) Degrade(std::string(Message(written)));
}

}  // namespace ems::ssd
