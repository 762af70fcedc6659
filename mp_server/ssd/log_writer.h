#pragma once
// The thread that writes: gathers objects into large writes, makes their rows durable in groups,
// and gives whole regions up when there is no free one.
//
// Order: everything goes through one queue, and a row is written only after its record, so a delete
// that is queued after a Put can never be overtaken by the Put's row. An object whose write fails
// is not on the SSD; nothing is retried behind the caller's back.
//
// Bound: `dirty_bytes_max` of values queued or being written, kOpsMax operations, kWriteDepth
// writes under way.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/ssd/region_space.h"
#include "mp_server/ssd/row_commit.h"
#include "mp_server/ssd/write_group.h"

namespace ems::ssd {

enum class TierState : uint8_t { kOk, kDegraded, kOffline };
std::string_view TierStateName(TierState state);

struct WriterStats {
  uint64_t written_objects = 0;
  uint64_t written_bytes = 0;       // values
  uint64_t disk_bytes = 0;          // of all writes to regions, padding and headers included
  uint64_t shed_objects = 0;        // not taken: too much waits already, or the tier is degraded
  uint64_t superseded_objects = 0;  // removed or replaced before they were written
  uint64_t failed_objects = 0;
  uint64_t commits = 0;
  uint64_t synced_commits = 0;
  uint64_t reclaimed_regions = 0;
  uint64_t reclaimed_objects = 0;  // gone with them
  uint64_t moved_objects = 0;      // kept, because somebody had read them
  uint64_t degraded_times = 0;
  uint64_t dirty_bytes = 0;
  uint64_t regions = 0;
  uint64_t index_bytes = 0;  // on the disk
};

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
    uint64_t objects_max = UINT64_MAX;  // so many rows the durable index has room for
    uint64_t next_sequence = 1;
    const Clock* clock = &Clock::System();
    std::function<void(uint32_t region, int fd)> on_region;  // may be read from now on
  };
  // Starts "ems-ssd-log".
  explicit LogWriter(Options options);
  // Writes what is queued, for 5 s at most, then stops.
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
  using Metas = std::vector<std::pair<std::string, std::string>>;
  // Deletes rows without hurry, and then writes meta rows that say so, all at once. What is not
  // deleted before the end is without the meta rows, too. Until those are there, no ticket says of
  // anything that was put later that it cannot be lost: a restart goes by the old ones.
  void Forget(std::vector<OwedDelete> owed, Metas metas);
  void SetLimits(std::vector<NamespaceLimits> limits);

  TierState state() const { return state_.load(std::memory_order_acquire); }
  std::string state_reason();
  WriterStats stats() const;
  // Whether a value of so many bytes would be taken now.
  bool HasRoomFor(uint64_t value_bytes) const;

 private:
  enum class OpKind : uint8_t { kPut, kRemove, kDurable, kForget };
  struct Op {
    OpKind kind = OpKind::kPut;
    WriteJob job;     // kPut; the others use its name and ticket
    OwedDelete owed;  // kRemove
    std::vector<OwedDelete> all_owed;
    Metas metas;
    std::vector<TicketPtr> held;  // finished with the meta rows; kOpsMax at most
  };
  class Group;
  struct Queue {
    std::deque<Op> ops;
    std::vector<Group*> done;
    std::optional<std::vector<NamespaceLimits>> limits;
    bool stopping = false;
    TimePoint give_up_at{};
  };

  bool Enqueue(Op op);
  void Run();
  bool Step();  // false: it is time to end
  void TakeNews();
  bool TimeIsOver() const;
  void Work();
  void Handle(Op op);
  bool HandlePut(WriteJob* job);  // false, and `job` untouched: not now
  void ForgetSome();
  void FailHeld();
  // Finishes it as done, now or with the meta rows that are still to come.
  void FinishDurable(TicketPtr ticket);
  Op* LastWithMetas();
  Status RewriteRows();
  void LookAtWaiting();
  Group** GroupFor(Region* region, const RecordShape& shape);
  uint64_t Unsubmitted(const Region* region) const;
  // One object may end two groups.
  bool CanWork() const { return under_way_ + 2 <= kWriteDepth; }
  void Submit(Group** group);
  void OnGroupDone(Group* group);
  void FailGroup(Group* group);
  void Recycle(Group* group);
  void Commit();
  void SyncRegions();
  bool SyncRegion(Region* region);
  void CountDisk();
  void EndSuperseded(WriteJob* job);
  void EndJob(WriteJob* job, bool ok, std::atomic<uint64_t>* counter);
  // The open region of the namespace, with room for so many bytes.
  // Errors: kOutOfRange  a region is too small for it    kUnavailable  soon    kResourceExhausted
  Result<Region*> RoomFor(NamespaceRef ns, uint64_t bytes);
  void Reclaim(Region* victim);
  bool Move(const Region& region, const ObjectName& name, const Row& row);
  void BackOff();
  void Degrade(std::string reason);
  void Heal();

  const Options options_;
  std::atomic<TierState> state_{TierState::kOk};
  Guarded<std::string> reason_;
  Guarded<Queue> queue_;
  std::condition_variable wakeup_;
  std::atomic<uint64_t> dirty_bytes_{0};
  std::atomic<uint64_t> next_sequence_;

  // The log thread's own.
  RegionSpace space_;
  RowCommit commit_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Group*> idle_groups_;
  std::vector<Group*> landed_;  // records are on the disk, rows are not
  std::deque<Op> ops_;          // taken from the queue
  std::deque<WriteJob> moves_;  // out of regions that were given up
  std::vector<Op> waiting_;     // kDurable, for something that is pending
  std::deque<Op> forgets_;
  std::map<std::string, std::string> metas_;  // as written by Forget
  Group* packing_ = nullptr;                  // small objects, waiting for more
  Group* filling_ = nullptr;                  // large ones
  TimePoint packing_since_{};
  uint32_t under_way_ = 0;
  bool sync_all_ = false;  // the next commit is to make everything before it durable
  Duration backoff_{};
  TimePoint retry_at_{};
  TimePoint count_at_{};
  TimePoint complain_at_{};
  bool stopping_ = false;
  TimePoint give_up_at_{};

  struct Counters {
    std::atomic<uint64_t> written_objects{0}, written_bytes{0}, disk_bytes{0}, shed{0},
        superseded{0}, failed{0}, commits{0}, synced_commits{0}, reclaimed_regions{0},
        reclaimed_objects{0}, moved{0}, degraded{0}, regions{0}, index_bytes{0};
  };
  Counters counters_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::ssd
