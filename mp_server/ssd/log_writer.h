#pragma once
// The thread that writes: gathers objects into large writes, and hands them to the parts that make
// them count (group_commit.h), delete rows (delete_log.h) and give regions up (region_reclaimer.h).
//
// An overwritten object is held back until its key is quiet (held_back.h), unless it is to be
// durable.
//
// Order: a row is written only after its record, and only if its Put counts still. A delete is
// asked for once what it deletes counts no more, so it may go ahead of all Puts that are queued,
// and does: a caller waits for it. Everything else goes through one queue.
//
// Bound: `dirty_bytes_max` of values queued or being written, kOpsMax operations, kWriteDepth
// writes under way.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/ssd/delete_log.h"
#include "mp_server/ssd/group_commit.h"
#include "mp_server/ssd/held_back.h"
#include "mp_server/ssd/region_reclaimer.h"
#include "mp_server/ssd/region_space.h"
#include "mp_server/ssd/row_commit.h"
#include "mp_server/ssd/row_room.h"
#include "mp_server/ssd/small_values.h"
#include "mp_server/ssd/tier_health.h"
#include "mp_server/ssd/write_group.h"
#include "mp_server/ssd/writer_stats.h"

namespace ems::ssd {

// Threading: thread-safe.
class LogWriter final {
 public:
  static constexpr uint32_t kWriteDepth = 9;
  static constexpr size_t kOpsMax = 1 << 16;

  // All must outlive the writer, and are its own thread's while it lives, but for `index`.
  struct Options {
    RegionLog* log = nullptr;
    SsdIndex* index = nullptr;
    RegionIndex* rows = nullptr;
    IoEngine* io = nullptr;
    uint64_t dirty_bytes_max = 0;
    uint64_t objects_max = UINT64_MAX;  // so many rows the index has room for
    // As SmallValues'.
    uint64_t small_bytes = 0;
    uint64_t next_sequence = 1;
    Duration overwrite_quiet = HeldBack::kQuiet;
    const Clock* clock = &Clock::System();
    std::function<void(uint32_t region, int fd)> on_region;  // may be read from now on
  };
  // Starts "ems-ssd-log".
  explicit LogWriter(Options options);
  // Writes what is queued, for 5 s at most, then stops; writes under way are waited for, however
  // long.
  ~LogWriter();

  // Takes an object over. Whatever was stored or pending under its name does not count any more
  // from here on. `durable`: the ticket says when it cannot be lost. Otherwise there is a ticket
  // only if something was there before, and it says when that is gone for good.
  TicketPtr Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                std::function<void()> wake);
  // Null: there was nothing. Otherwise the ticket says when it is gone for good.
  TicketPtr Remove(const ObjectName& name, std::function<void()> wake);
  // What is stored or pending under `name` cannot be lost any more. Fails when there is neither.
  TicketPtr MakeDurable(const ObjectName& name, std::function<void()> wake);
  // Null unless the name is owed a delete; otherwise the ticket says when there is no row of an old
  // value any more.
  TicketPtr MakeForgotten(const ObjectName& name, std::function<void()> wake);
  using Metas = DeleteLog::Metas;
  // Deletes rows without hurry, and then writes meta rows that say so, all at once. What is not
  // deleted before the end is without the meta rows, too. Until those are there, no ticket says of
  // anything that was put later that it cannot be lost: a restart goes by the old ones.
  void Forget(std::vector<OwedDelete> owed, Metas metas);
  void SetLimits(std::vector<NamespaceLimits> limits);
  // Overwritten values that are held back (held_back.h) are written now: their memory is wanted.
  void HurryHeldBack() {
    if (!held_back_.HurryAll()) return;
    auto queue = queue_.Lock();
    wakeup_.notify_one();
  }

  TierState state() const { return health_.state(); }
  std::string state_reason() { return health_.reason(); }
  WriterStats stats();
  // Whether a value is too small for what is left of the index; it counts as refused then.
  bool RefusesSmall(NamespaceRef ns, uint64_t value_bytes);
  // Whether a value of so many bytes would be taken now.
  bool HasRoomFor(uint64_t value_bytes) const {
    return state() == TierState::kOk &&
           dirty_bytes_.load(std::memory_order_relaxed) + value_bytes <= options_.dirty_bytes_max;
  }

 private:
  enum class OpKind : uint8_t { kPut, kDurable, kForget };
  struct Op {
    OpKind kind = OpKind::kPut;
    WriteJob job{};  // kPut; the others use its name and ticket
    std::vector<OwedDelete> all_owed{};
    Metas metas{};
  };
  struct Delete {
    OwedDelete owed;
    TicketPtr ticket;  // may be null
  };
  class Group;
  struct Queue {
    std::deque<Op> ops;
    std::vector<Delete> deletes;
    std::vector<Group*> done;
    std::optional<std::vector<NamespaceLimits>> limits;
    bool stopping = false;
    TimePoint give_up_at{};
  };

  bool Enqueue(Op op);
  bool EnqueueDelete(const OwedDelete& owed, TicketPtr ticket);
  // Null: nothing is owed. The ticket fails at once when the delete is not taken.
  TicketPtr AskDelete(const OwedDelete& owed, std::function<void()> wake);
  void Run();
  bool Step();  // false: it is time to end
  void TakeNews();
  bool TimeIsOver() const { return stopping_ && options_.clock->Now() >= give_up_at_; }
  void Work();
  void Handle(Op op);
  bool HandlePut(WriteJob* job);  // false, and `job` untouched: not now
  void MoveSome();
  // Makes room for one more row, if a region has to go for it.
  RowRoom::Answer MakeRowRoom();
  // The open region of the namespace, with room for so many bytes.
  // Errors: kOutOfRange  a region is too small for it    kUnavailable  soon    kResourceExhausted
  Result<Region*> RoomFor(NamespaceRef ns, uint64_t bytes);
  Result<Region*> NextRegion(NamespaceRef ns);
  // What is left of an open region, beside what is on its way there.
  uint64_t RoomLeft(const Region& region) const;
  Group** GroupFor(Region* region, const RecordShape& shape);
  // One object may end two groups.
  bool CanWork() const { return under_way_ + 2 <= kWriteDepth; }
  void Submit(Group** group);
  void OnGroupDone(Group* group);
  void Heal();

  const Options options_;
  WriterCounts counts_;
  Guarded<Queue> queue_;
  std::condition_variable wakeup_;
  std::atomic<bool> deletes_wait_{false};  // a hint: callers wait for some of the queue
  std::atomic<uint64_t> dirty_bytes_{0};
  std::atomic<uint64_t> next_sequence_;
  TierHealth health_;
  SmallValues small_values_;
  HeldBack held_back_;

  // The log thread's own.
  RegionSpace space_;
  RowCommit commit_;
  DeleteLog deletes_;
  GroupCommit group_commit_;
  RegionReclaimer reclaimer_;
  RowRoom row_room_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::deque<Op> ops_;        // taken from the queue
  Group* packing_ = nullptr;  // small objects, waiting for more
  Group* filling_ = nullptr;  // large ones
  TimePoint packing_since_{};
  uint32_t under_way_ = 0;
  TimePoint count_at_{};
  TimePoint complain_at_{};
  bool stopping_ = false;
  TimePoint give_up_at_{};
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::ssd
