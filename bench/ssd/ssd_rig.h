#pragma once
// The rig of the SSD bench: values whose checksums are known before the clock starts, a tier that
// is written as fast as it takes them, and the disk space that its files take.
//
// Bound: values in memory: kRingBytes, or one value when that is larger; the tier's dirty bytes.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/aligned_buffer.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::bench {

// Values of one size, all different, on blocks. Object n is called "object-<n>" and has the value
// n modulo their number. Must outlive its objects. Threading: immutable.
class ValueRing final {
 public:
  static constexpr uint64_t kRingBytes = 64 * kMiB;
  explicit ValueRing(uint64_t value_bytes);
  uint64_t value_bytes() const { return value_bytes_; }
  std::unique_ptr<ssd::DirtyObject> Object(uint64_t number) const;
  static std::string KeyOf(uint64_t number);
  static ssd::ObjectName NameOf(uint64_t number);

  struct Value {
    ConstBytes bytes;
    std::vector<uint64_t> piece_sums;
    uint64_t checksum = 0;
  };

 private:
  const uint64_t value_bytes_;
  ssd::AlignedBuffer memory_;
  std::vector<Value> values_;
};

// The size of a tier for so many objects of one size.
struct TierSize {
  uint64_t region_bytes = 0;
  uint64_t regions = 0;
  uint64_t capacity_bytes = 0;
};
// Regions are what a tier of about `bytes` would choose: a thirty-second, 8 MiB to 128 MiB.
uint64_t RegionBytesFor(uint64_t bytes);
// Room for all of them. / Room for so many bytes of regions, four regions at least.
TierSize SizeForObjects(uint64_t objects, uint64_t value_bytes);
TierSize SizeForRegions(uint64_t bytes, uint64_t region_bytes);

// Threading: one thread.
class BenchTier final {
 public:
  // Opens what is in `folder`, which may be nothing.
  // Errors: kUnavailable  offline; says why
  static Result<std::unique_ptr<BenchTier>> Open(const std::string& folder, const TierSize& size);

  // Puts objects first … first + count - 1, dirty bytes near their limit, and waits until all of
  // them are written. Blocks. Errors: kUnavailable  some were not written, or interrupted
  Status Write(const ValueRing& ring, uint64_t first, uint64_t count);
  // Reads objects, each into memory of its own, `depth` at a time. `latencies`: from the call to
  // its callback. Blocks. Errors: kUnavailable  one was not there, or was damaged, or interrupted
  Status Read(const std::vector<uint64_t>& numbers, uint64_t value_bytes, uint32_t depth,
              LatencyRecorder* latencies);
  ssd::TierStats stats() const { return tier_->stats(); }
  double open_seconds() const { return open_seconds_; }

 private:
  explicit BenchTier(std::unique_ptr<ssd::SsdTier> tier) : tier_(std::move(tier)) {}
  Status Pause();

  const std::unique_ptr<ssd::SsdTier> tier_;
  double open_seconds_ = 0;
};

// The most that the files of a folder took of the disk (allocated bytes), looked at every 50 ms.
// Threading: one thread (holder); looks on one of its own.
class FolderWatch final {
 public:
  explicit FolderWatch(std::string folder);
  ~FolderWatch();
  // Looks once more and ends.
  uint64_t Stop();

 private:
  void Look();

  const std::string folder_;
  std::atomic<uint64_t> most_{0};
  StopFlag stop_;
  Thread thread_;
};

// Of all files below it, now.
uint64_t AllocatedBytes(const std::string& folder);
// Brings what the file system owes the disk there, so that nobody pays for what came before.
void Settle(const std::string& folder);

}  // namespace ems::bench
