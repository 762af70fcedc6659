#pragma once
// Overwritten objects that wait until their keys have been quiet for a while before they are
// written to the SSD.
//
// An overwrite of what is stored waits for the synced delete of the older row. A key that is
// overwritten again and again would pay for that each time, and wear the disk for values that
// nobody reads from there. Here the newest value takes the place of the one before it, which was
// never given to the disk: there is no row of it, and nothing to wait for.
//
// Bound: `bytes_max` of values and kHeldMax of them; beyond it, those that are due first are due at
// once. A value waits `quiet` at most, and a key `longest` from its first overwrite to its next
// write, however often it is overwritten.
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "mp_server/ssd/ssd_index.h"
#include "mp_server/ssd/write_group.h"
#include "mp_server/ssd/writer_stats.h"

namespace ems::ssd {

// Threading: thread-safe; leaf locks, one at a time.
class HeldBack final {
 public:
  static constexpr size_t kHeldMax = 1 << 16;
  static constexpr uint64_t kPart = 4;  // of the tier's dirty bytes, for bytes_max
  static constexpr Duration kQuiet = std::chrono::seconds(2);
  static constexpr Duration kLongest = std::chrono::seconds(20);

  struct Options {  // the pointers must outlive this
    SsdIndex* index = nullptr;
    WriterCounts* counts = nullptr;
    std::atomic<uint64_t>* dirty_bytes = nullptr;  // the values of what is held count there
    uint64_t bytes_max = 0;
    Duration quiet = kQuiet;  // zero: nothing is held
    Duration longest = kLongest;
    const Clock* clock = &Clock::System();
  };
  explicit HeldBack(const Options& options) : options_(options) {}

  // Of a job that began as held (SsdIndex::BeginWrite); takes the place of an older one of its key.
  // False: it is not held, but the caller's as before, to be written at once.
  bool Hold(WriteJob* job);
  // A job of this key whose Put came before `sequence` is over: it does not count any more.
  void Drop(const ObjectName& name, uint64_t sequence = UINT64_MAX);
  // What is held under this name, or all there is, is due now. False: there is nothing.
  void Hurry(const ObjectName& name);
  bool HurryAll();
  // What is due; it is no more held. `end`: all of it, and nothing is held from now on.
  std::vector<WriteJob> TakeDue(bool end);

  // A hint: for who need not lock then.
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // The same: some are due, because of the bound or HurryAll, and nobody waits for the clock.
  bool overdue() const { return overdue_.load(std::memory_order_relaxed); }
  // Of values that are not due at once.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    WriteJob job;
    TimePoint first;  // since when the key has been overwritten
    TimePoint due;    // kNow: at once
  };
  using Jobs = std::map<ObjectName, Waiting>;
  struct State {
    Jobs jobs;
    std::set<std::pair<TimePoint, ObjectName>> by_due;
    bool hurry = false;
    bool ended = false;
  };
  static constexpr TimePoint kNow = TimePoint::min();
  // The first three under the lock.
  void Add(State* state, WriteJob job, TimePoint first);
  WriteJob Remove(State* state, Jobs::iterator at);
  void MakeDue(State* state, Jobs::iterator at);
  void Supersede(WriteJob job);

  const Options options_;
  Guarded<State> state_;
  std::atomic<uint64_t> count_{0}, bytes_{0};  // written under the lock
  std::atomic<bool> overdue_{false};           // so is this
};

}  // namespace ems::ssd
