#pragma once
// Reads records into memory of the caller's and checks all of them.
//
// A large value is read in parts that are under way together, and each is checked as it lands.
//
// Bound: reads_max reads under way; more are refused at once. A disk that answers no more, or too
// slowly, is left alone for a second at a time: a miss now beats a hit too late.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "mp_server/ssd/disk/io_engine.h"
#include "mp_server/ssd/disk/stored_record.h"

namespace ems::ssd {

enum class ReadOutcome : uint8_t {
  kOk,
  kOther,    // a sound record of another key with the same hash
  kGone,     // the region is used for something else by now, or the record is not one
  kDamaged,  // it is what was meant, and does not match its checksum, twice
  kFailed,   // the disk did not read it
};

struct ReadTarget {
  // The value's bytes. From kAlignedFrom bytes up it starts on a block, and what is left of its
  // last block is written, too.
  MutableBytes value{};
  std::span<uint64_t> piece_sums{};  // PieceCount of the value
  // Unless null: receives the key, and that is all that is read. The value is not looked at. Such
  // reads take half of the places at most.
  std::string* key = nullptr;
};

// Threading: thread-safe.
class RecordReader final {
 public:
  static constexpr uint32_t kPartsMax = 16;  // operations of the engine that one read takes
  struct Options {
    IoEngine* io = nullptr;  // must outlive the reader, and have called back all reads before it
    uint64_t store_id = 0;
    uint32_t reads_max = 64;
    uint32_t regions_max = 0;
    Duration slow = std::chrono::milliseconds(500);
    const Clock* clock = &Clock::System();
  };
  explicit RecordReader(Options options);
  // Waits for reads under way and their callbacks.
  ~RecordReader();
  // The same, and refuses all from now on.
  void Drain();

  void SetRegion(uint32_t region, int fd);
  // `done` is called once, on a thread of the engine. False: not now, and it is not called. The
  // target must stay until then. Without a key: whatever its key is. Cost: no allocation in a
  // steady state but for the key.
  bool Read(const ObjectName& name, std::optional<std::string> key, const Row& row,
            const ReadTarget& target, std::function<void(ReadOutcome)> done);

  struct Stats {
    uint64_t reads = 0;
    uint64_t bytes = 0;  // of values
    uint64_t refused = 0;
    uint64_t failed = 0;
    uint64_t damaged = 0;
    uint64_t under_way = 0;
  };
  Stats stats() const;

 private:
  class Job;
  struct Jobs {
    std::vector<std::unique_ptr<Job>> all;
    std::vector<Job*> idle;
    uint32_t running = 0;  // not done with their callback
    bool draining = false;
  };
  void Done(Job* job, ReadOutcome outcome);
  bool Slow(TimePoint now) const;

  const Options options_;
  std::vector<std::atomic<int>> fds_;
  Guarded<Jobs> jobs_;
  std::condition_variable drained_;
  std::atomic<uint32_t> under_way_{0};
  std::atomic<int64_t> progress_ns_{0};  // when a read ended last, or the first of several began
  std::atomic<int64_t> rest_until_ns_{0};
  std::atomic<uint64_t> reads_{0}, bytes_{0}, refused_{0}, failed_{0}, damaged_{0};
};

}  // namespace ems::ssd
