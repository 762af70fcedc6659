#include "mp_server/ssd/log_writer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/check.h"
#include "common/fail_point.h"
#include "common/logging.h"

namespace ems::ssd {
namespace {

// Small objects wait for each other so long, so that less of a block is padding.
constexpr Duration kPackPatience = std::chrono::milliseconds(10);
constexpr uint64_t kPackBytes = 256 * kKiB;
constexpr Duration kLookAgain = std::chrono::microseconds(2500);
// Then others have their turn.
constexpr uint64_t kMoveStepBytes = kMiB;
constexpr int kMoveStepReads = 16;
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kStopPatience = std::chrono::seconds(5);
constexpr Duration kComplainEvery = std::chrono::seconds(60);
constexpr Duration kCountEvery = std::chrono::seconds(1);

// Of a region, for a record: the block that a group of packed ones ends in is filled up.
uint64_t Needed(uint64_t record_bytes) { return RoundUp(record_bytes, kBlockBytes) + kBlockBytes; }

}  // namespace

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
      health_(options_.clock),
      small_values_({.index = options_.index,
                     .objects_max = options_.objects_max,
                     .small_bytes = options_.small_bytes}),
      held_back_({.index = options_.index,
                  .counts = &counts_,
                  .dirty_bytes = &dirty_bytes_,
                  .bytes_max = options_.dirty_bytes_max / HeldBack::kPart,
                  .quiet = options_.overwrite_quiet,
                  .clock = options_.clock}),
      space_(options_.log),
      commit_(options_.rows, options_.index),
      deletes_(options_.rows, options_.index, &commit_),
      group_commit_({.log = options_.log,
                     .index = options_.index,
                     .rows = options_.rows,
                     .space = &space_,
                     .commit = &commit_,
                     .deletes = &deletes_,
                     .health = &health_,
                     .counts = &counts_,
                     .held_back = &held_back_,
                     .dirty_bytes = &dirty_bytes_}),
      reclaimer_(options_.log, options_.index, &commit_, &group_commit_, &counts_),
      row_room_({.objects = [this] { return options_.index->objects(); },
                 .objects_max = options_.objects_max,
                 .has_room = [this] { return options_.rows->HasRoom(); },
                 .clock = options_.clock}) {
  counts_.Set(&WriterStats::regions, options_.log->count());
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

bool LogWriter::RefusesSmall(NamespaceRef ns, uint64_t value_bytes) {
  if (!small_values_.Refuses(ns, value_bytes)) return false;
  counts_.Add(&WriterStats::refused_small_objects);
  return true;
}

bool LogWriter::Enqueue(Op op) {
  auto queue = queue_.Lock();
  const bool full = queue->ops.size() >= kOpsMax && op.kind != OpKind::kForget;  // one a view
  if (queue->stopping || full) return false;
  queue->ops.push_back(std::move(op));
  if (queue->ops.size() == 1) wakeup_.notify_one();
  return true;
}

bool LogWriter::EnqueueDelete(const OwedDelete& owed, TicketPtr ticket) {
  auto queue = queue_.Lock();
  if (queue->stopping || queue->deletes.size() >= kOpsMax) return false;
  queue->deletes.push_back({owed, std::move(ticket)});
  deletes_wait_.store(true, std::memory_order_relaxed);
  if (queue->deletes.size() == 1) wakeup_.notify_one();
  return true;
}

TicketPtr LogWriter::Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                         std::function<void()> wake) {
  const uint64_t bytes = object->value().size();
  const SsdIndex::Begun begun =
      options_.index->BeginWrite(name, &next_sequence_, *object, !durable);
  const uint64_t sequence = begun.sequence;
  const OwedDelete owed = begun.owed;
  if (!begun.begun) counts_.Add(&WriterStats::superseded_objects);
  if (!begun.begun && !durable) return MakeForgotten(name, std::move(wake));
  TicketPtr ticket;
  if (durable || owed) ticket = std::make_shared<Ticket>(std::move(wake));
  if (!begun.begun) {
    ticket->FailAtOnce();
    return ticket;
  }
  // Counted first, so that many at once do not all find the last room.
  const uint64_t before = dirty_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const bool refused = small_values_.Refuses(name.ns, bytes);
  const bool room =
      !refused && state() == TierState::kOk && before + bytes <= options_.dirty_bytes_max;
  if (owed && !(durable && room)) {
    // The row of what was there goes first: the new one may never get there.
    if (!EnqueueDelete(owed, durable ? nullptr : ticket) && !durable) ticket->FailAtOnce();
  }
  const bool hold = begun.held && room;
  if (!hold) held_back_.Drop(name, sequence);
  if (room) {
    Op op{.job = {.name = name,
                  .sequence = sequence,
                  .value_bytes = bytes,
                  .durable = durable,
                  .object = std::move(object),
                  .ticket = durable ? ticket : nullptr}};
    const bool held = hold && held_back_.Hold(&op.job);
    if (held && held_back_.overdue()) {
      auto queue = queue_.Lock();
      wakeup_.notify_one();
    }
    if (held || Enqueue(std::move(op))) return ticket;
  }
  dirty_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  options_.index->AbandonWrite(name, sequence);
  counts_.Add(refused ? &WriterStats::refused_small_objects : &WriterStats::shed_objects);
  if (durable) ticket->FailAtOnce();
  return ticket;
}

TicketPtr LogWriter::AskDelete(const OwedDelete& owed, std::function<void()> wake) {
  if (!owed) return nullptr;
  auto ticket = std::make_shared<Ticket>(std::move(wake));
  if (!EnqueueDelete(owed, ticket)) ticket->FailAtOnce();
  return ticket;
}

TicketPtr LogWriter::Remove(const ObjectName& name, std::function<void()> wake) {
  held_back_.Drop(name);
  return AskDelete(options_.index->Drop(name), std::move(wake));
}

TicketPtr LogWriter::MakeForgotten(const ObjectName& name, std::function<void()> wake) {
  return AskDelete(options_.index->OwedTo(name), std::move(wake));
}

TicketPtr LogWriter::MakeDurable(const ObjectName& name, std::function<void()> wake) {
  Op op;
  op.kind = OpKind::kDurable;
  op.job.name = name;
  TicketPtr ticket = op.job.ticket = std::make_shared<Ticket>(std::move(wake));
  if (!Enqueue(std::move(op))) ticket->FailAtOnce();
  return ticket;
}

void LogWriter::Forget(std::vector<OwedDelete> owed, Metas metas) {
  Op op{.kind = OpKind::kForget, .all_owed = std::move(owed), .metas = std::move(metas)};
  (void)Enqueue(std::move(op));  // refused while stopping alone: then no meta row is written
}

void LogWriter::SetLimits(std::vector<NamespaceLimits> limits) {
  {
    auto queue = queue_.Lock();
    queue->limits = std::move(limits);
  }
  wakeup_.notify_one();
}

WriterStats LogWriter::stats() {
  WriterStats stats = counts_.Get();
  stats.degraded_times = health_.degraded_times();
  stats.dirty_bytes = dirty_bytes_.load(std::memory_order_relaxed);
  stats.held_back_bytes = held_back_.bytes();
  return stats;
}

// --- The log thread.

void LogWriter::Run() {
  while (Step()) {
  }
  // Nobody will write these any more.
  std::vector<Delete> deletes;
  {
    auto queue = queue_.Lock();
    for (Op& op : queue->ops) ops_.push_back(std::move(op));
    queue->ops.clear();
    deletes.swap(queue->deletes);
  }
  for (const Delete& one : deletes) Finish(one.ticket, false);
  for (Op& op : ops_) {
    if (op.job.object != nullptr) {
      group_commit_.End(&op.job, false, &WriterStats::failed_objects);
    } else {
      Finish(op.job.ticket, false);
    }
  }
  for (WriteJob& job : reclaimer_.moves())
    group_commit_.End(&job, false, &WriterStats::failed_objects);
  group_commit_.FailWaiting();
  for (Group* group : {packing_, filling_}) {
    if (group != nullptr) group_commit_.Fail(group);
  }
  group_commit_.Commit();  // what those were to replace must not come back
  deletes_.FailHeld();
  if (!options_.rows->broken()) (void)options_.rows->SyncLog();  // the machine may go down next
}

bool LogWriter::Step() {
  TakeNews();
  Heal();
  // Before anything else is given to the disk, which a sync would have to wait for, and before what
  // others wait for is synced.
  if (commit_.awaited()) group_commit_.Commit();
  group_commit_.LookAtWaiting(stopping_);
  if (commit_.awaited()) group_commit_.Commit();
  MoveSome();
  for (WriteJob& job : held_back_.TakeDue(stopping_)) {
    if (job.quiet) EMS_FAIL_POINT("ssd.held_due");
    ops_.push_back({.job = std::move(job)});
  }
  Work();
  deletes_.Step();
  group_commit_.Commit();
  if (options_.clock->Now() >= count_at_) {
    count_at_ = options_.clock->Now() + kCountEvery;
    counts_.Set(&WriterStats::index_bytes, options_.rows->disk_bytes());
    reclaimer_.DropDeadMembers();
  }
  if (!stopping_ || under_way_ > 0) return true;
  auto queue = queue_.Lock();
  const bool idle = ops_.empty() && reclaimer_.moves().empty() && !deletes_.pending() &&
                    packing_ == nullptr && queue->ops.empty() && queue->deletes.empty() &&
                    queue->done.empty();
  return !idle && !TimeIsOver();
}

void LogWriter::TakeNews() {
  std::vector<Group*> done;
  std::vector<Delete> deletes;
  std::optional<std::vector<NamespaceLimits>> limits;
  {
    auto queue = queue_.Lock();
    const bool soon = packing_ != nullptr || group_commit_.waiting() ||
                      !reclaimer_.moves().empty() || !deletes_.empty() ||
                      (!ops_.empty() && CanWork()) || (stopping_ && under_way_ == 0);
    const bool now = deletes_.pending() || (reclaimer_.moving() != nullptr && CanWork());
    const Duration patience = now ? Duration::zero() : soon ? kLookAgain : kTick;
    queue.WaitFor(wakeup_, patience, [&](const Queue& q) {
      return !q.done.empty() || !q.deletes.empty() || q.limits || held_back_.overdue() ||
             (q.stopping && !stopping_) || (ops_.empty() && !q.ops.empty() && CanWork());
    });
    done.swap(queue->done);
    deletes.swap(queue->deletes);
    deletes_wait_.store(false, std::memory_order_relaxed);
    limits.swap(queue->limits);
    stopping_ = queue->stopping;
    give_up_at_ = queue->give_up_at;
    if (ops_.empty()) ops_.swap(queue->ops);
  }
  if (limits) {
    space_.SetLimits(*limits);
    small_values_.Except(space_.BelowReserved());
  }
  for (Delete& one : deletes) deletes_.Delete(one.owed, std::move(one.ticket));
  for (Group* group : done) OnGroupDone(group);
}

void LogWriter::Work() {
  if (TimeIsOver()) return;
  std::deque<WriteJob>& moves = reclaimer_.moves();
  while (!moves.empty() && CanWork() && HandlePut(&moves.front())) moves.pop_front();
  const uint32_t before = under_way_;
  while (!ops_.empty() && CanWork()) {
    if (ops_.front().kind == OpKind::kPut) {
      if (!HandlePut(&ops_.front().job)) break;
    } else {
      Handle(std::move(ops_.front()));
    }
    ops_.pop_front();
    if (under_way_ > before && deletes_wait_.load(std::memory_order_relaxed)) break;  // those first
  }
  if (under_way_ < kWriteDepth) Submit(&filling_);
  if (packing_ == nullptr || under_way_ >= kWriteDepth) return;
  const bool due = packing_->durable() || packing_->bytes() >= kPackBytes || stopping_ ||
                   options_.clock->Now() - packing_since_ >= kPackPatience;
  if (due) Submit(&packing_);
}

void LogWriter::Handle(Op op) {
  switch (op.kind) {
    case OpKind::kDurable:
      return group_commit_.WaitDurable(op.job.name, std::move(op.job.ticket));
    case OpKind::kForget:
      return deletes_.Forget(std::move(op.all_owed), std::move(op.metas));
    case OpKind::kPut:
      break;
  }
  EMS_CHECK(false, "a Put is handled by itself");
}

bool LogWriter::HandlePut(WriteJob* job) {
  if (!options_.index->Counts(job->name, job->sequence) || !job->object->current()) {
    group_commit_.EndSuperseded(job);
    return true;
  }
  if (health_.state() != TierState::kOk) {
    group_commit_.End(job, false, &WriterStats::shed_objects);
    return true;
  }
  const RecordShape shape(job->value_bytes, job->object->key().size());
  if (const RowRoom::Answer room = MakeRowRoom(); room != RowRoom::Answer::kNow) {
    if (room == RowRoom::Answer::kSoon) return false;
    group_commit_.End(job, false, &WriterStats::shed_objects);
    return true;
  }
  const Result<Region*> region = RoomFor(job->name.ns, shape.record_bytes());
  if (region.ok()) {
    Group** group = GroupFor(*region, shape);
    (*group)->Add(std::move(*job), shape, options_.log->options().store_id);
    if (RoomLeft(**region) <= space_.FillLimit((*region)->ns) / 2)
      reclaimer_.LookAhead(*region, &space_);
    return true;
  }
  if (region.status().code() == StatusCode::kUnavailable) return false;
  group_commit_.End(job, false, &WriterStats::failed_objects);
  return true;
}

void LogWriter::MoveSome() {
  if (health_.state() != TierState::kOk || stopping_) reclaimer_.EndMoving();
  uint64_t bytes = 0;
  for (int reads = 0; reads < kMoveStepReads && bytes < kMoveStepBytes && CanWork(); ++reads) {
    if (deletes_wait_.load(std::memory_order_relaxed)) return;  // those first
    const Region* const from = reclaimer_.moving();
    Region* const open = from == nullptr ? nullptr : space_.OpenOf(from->ns);
    if (open == nullptr) return reclaimer_.EndMoving();
    std::optional<WriteJob> job = reclaimer_.NextMove(
        [&](uint64_t record_bytes) { return Needed(record_bytes) <= RoomLeft(*open); });
    if (!job) return;
    const RecordShape shape(job->value_bytes, job->object->key().size());
    bytes += shape.record_bytes();
    (*GroupFor(open, shape))->Add(*std::move(job), shape, options_.log->options().store_id);
  }
}

RowRoom::Answer LogWriter::MakeRowRoom() {
  const RowRoom::Answer answer = row_room_.Ask();
  if (answer == RowRoom::Answer::kNow) return answer;
  Submit(&packing_);
  Submit(&filling_);
  if (answer != RowRoom::Answer::kReclaim) return answer;
  const Result<RegionSpace::Choice> full = space_.NextToGo();
  if (full.ok()) (void)reclaimer_.Reclaim(full->region);  // or later
  const bool soon = full.ok() || full.status().code() == StatusCode::kUnavailable;
  return soon ? RowRoom::Answer::kSoon : RowRoom::Answer::kNone;
}

uint64_t LogWriter::RoomLeft(const Region& region) const {
  uint64_t taken = region.fill_bytes;
  for (const Group* group : {packing_, filling_}) {
    if (group != nullptr && group->region() == &region) taken += group->bytes();
  }
  const uint64_t limit = space_.FillLimit(region.ns);
  return limit - std::min(limit, taken);
}

Result<Region*> LogWriter::RoomFor(NamespaceRef ns, uint64_t bytes) {
  const uint64_t limit = space_.FillLimit(ns);
  if (kBlockBytes + Needed(bytes) > limit) {
    return Error(StatusCode::kOutOfRange, "a record of {} does not fit a region of {}",
                 FormatBytes(bytes), FormatBytes(limit));
  }
  Region* open = space_.OpenOf(ns);
  if (open != nullptr && Needed(bytes) <= RoomLeft(*open)) return open;
  if (open != nullptr) {
    if (filling_ != nullptr && filling_->region() == open) Submit(&filling_);
    if (packing_ != nullptr && packing_->region() == open) Submit(&packing_);
    space_.Seal(ns);
  }
  return NextRegion(ns);
}

Result<Region*> LogWriter::NextRegion(NamespaceRef ns) {
  const Result<RegionSpace::Choice> next = space_.Next(ns);
  if (!space_.disk().ok() && options_.clock->Now() >= complain_at_) {
    complain_at_ = options_.clock->Now() + kComplainEvery;
    EMS_LOG(kWarn, "mp_server", "SSD tier: no new region, continuing with {}: {}",
            options_.log->count(), Message(space_.disk()));
  }
  if (!next.ok()) {
    if (next.status().code() != StatusCode::kUnavailable && !space_.disk().ok())
      health_.Degrade(std::string(Message(space_.disk())));
    return next.status();
  }
  const RegionSpace::Choice choice = *next;
  const bool given = (choice.surplus == nullptr || reclaimer_.Reclaim(choice.surplus)) &&
                     (!choice.reclaim || reclaimer_.Reclaim(choice.region));
  if (!given)
    return Error(StatusCode::kUnavailable, "region {} cannot be given up now", choice.region->id);
  EMS_FAIL_POINT("ssd.before_begin");
  if (const Status begun = options_.log->Begin(choice.region, ns); !begun.ok()) {
    health_.Degrade(std::string(Message(begun)));
    return Error(StatusCode::kResourceExhausted, "{}", Message(begun));
  }
  choice.region->unsynced = true;
  counts_.Add(&WriterStats::disk_bytes, kBlockBytes);
  counts_.Set(&WriterStats::regions, options_.log->count());
  if (options_.on_region) options_.on_region(choice.region->id, choice.region->fd.get());
  space_.SetOpen(ns, choice.region);
  small_values_.Except(space_.BelowReserved());
  return choice.region;
}

LogWriter::Group** LogWriter::GroupFor(Region* region, const RecordShape& shape) {
  Group** group = shape.aligned ? &filling_ : &packing_;
  if (*group != nullptr && ((*group)->region() != region || !(*group)->Fits(shape))) Submit(group);
  if (*group != nullptr) return group;
  const auto idle = std::find_if(groups_.begin(), groups_.end(),
                                 [](const auto& one) { return one->region() == nullptr; });
  *group = idle != groups_.end() ? idle->get()
                                 : groups_.emplace_back(std::make_unique<Group>(this)).get();
  (*group)->Start(region, shape.aligned);
  ++region->writes_under_way;
  if (!shape.aligned) packing_since_ = options_.clock->Now();
  return group;
}

void LogWriter::Submit(Group** which) {
  Group* group = std::exchange(*which, nullptr);
  if (group == nullptr) return;
  counts_.Add(&WriterStats::disk_bytes, group->bytes());
  group->Place();
  EMS_CHECK(under_way_ < kWriteDepth, "{} writes are under way", under_way_);
  ++under_way_;
  EMS_FAIL_POINT("ssd.before_write");
  options_.io->Submit(group);
}

void LogWriter::OnGroupDone(Group* group) {
  EMS_CHECK(under_way_ > 0, "a write ends that was not begun");
  --under_way_;
  EMS_FAIL_POINT("ssd.after_write");
  Region* region = group->region();
  region->unsynced = true;
  if (group->result == static_cast<int64_t>(group->bytes())) {
    health_.OnWritten();
    return group_commit_.Land(group);
  }
  const int error = group->result < 0 ? static_cast<int>(-group->result) : EIO;
  region->state = RegionState::kBad;
  health_.Degrade(
      fmt::format("cannot write to region {}: {}", region->id, fabric::ErrnoText(error)));
  group_commit_.Fail(group);
}

void LogWriter::Heal() {
  if (stopping_ || !health_.MayTry()) return;
  const Status healed = group_commit_.WriteAllAgain();
  if (!healed.ok()) return health_.PutOff(std::string(Message(healed)));
  health_.Heal();
}

}  // namespace ems::ssd
