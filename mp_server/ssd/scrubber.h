#pragma once
// Reads everything that is stored, slowly and again and again, so that damage is found before
// a client reads the object.
//
// Bound: one read at a time, `bytes_per_s` on average; some hundred names and rows, and memory for
// the largest value.
#include <atomic>
#include <functional>

#include "common/clock.h"
#include "common/thread_pool.h"
#include "mp_server/ssd/disk/aligned_buffer.h"
#include "mp_server/ssd/record_reader.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

// Threading: thread-safe.
class Scrubber final {
 public:
  // Reads a record and checks it, whatever its key; drops it when it is not what it should be, but
  // not when it cannot be read: that may be the disk's bad hour, and nobody wants it now.
  // False: not now, and `done` is not called.
  using Read = std::function<bool(const ObjectName& name, const Row& row, const ReadTarget& target,
                                  std::function<void(ReadOutcome)> done)>;
  struct Options {
    SsdIndex* index = nullptr;  // must outlive it, as what `read` uses
    Read read;
    uint64_t bytes_per_s = 8 * kMiB;
    // A pass takes so long at least: what is small is not read all the time.
    Duration pass_at_least = std::chrono::minutes(10);
    const Clock* clock = &Clock::System();
  };
  // Starts "ems-ssd-scrub".
  explicit Scrubber(Options options);
  // Waits for the read under way, if any.
  ~Scrubber();

  struct Stats {
    uint64_t passes = 0;
    uint64_t objects = 0;  // since the start
    uint64_t bytes = 0;    // of their values
  };
  Stats stats() const;

 private:
  void Run();
  bool Pass();                                        // false: it is time to end
  bool Look(const ObjectName& name, const Row& row);  // the same
  bool ReadOne(const ObjectName& name, const Row& row);

  const Options options_;
  AlignedBuffer memory_;  // the thread's own, as the next two
  std::vector<uint64_t> sums_;
  uint64_t unpaid_bytes_ = 0;  // read, and not waited for yet
  std::atomic<uint64_t> passes_{0}, objects_{0}, bytes_{0};
  StopFlag stop_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::ssd
