#pragma once
// Objects that are written to one region with one operation.
//
// Two kinds: of packed records, copied one after the other into a buffer, and of aligned ones,
// whose payloads are written from where they lie. Bound: kGroupBytes and kGroupJobsMax, but for a
// single larger object.
#include <vector>

#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/io_engine.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/disk/region_log.h"

namespace ems::ssd {

// An object that is to be written. Move-only.
struct WriteJob {
  ObjectName name{};
  uint64_t sequence = 0;
  uint64_t value_bytes = 0;
  bool durable = false;  // a caller waits until it cannot be lost
  bool moved = false;    // it comes from a region that was reclaimed
  bool quiet = false;    // it was held back until its key was quiet
  // It comes from a region that will be, and is stored there until its row is written. It is
  // neither dirty nor does it ever fail for a caller.
  Region* from = nullptr;
  std::unique_ptr<DirtyObject> object{};
  TicketPtr ticket{};
  Row row{};  // once it is in a group
};

// Threading: one thread at a time.
class WriteGroup : public IoOp {
 public:
  static constexpr uint64_t kGroupBytes = kMiB;
  static constexpr size_t kGroupJobsMax = 256;

  void Start(Region* region, bool aligned);
  bool Fits(const RecordShape& shape) const;
  void Add(WriteJob job, const RecordShape& shape, uint64_t store_id);
  // Takes its place in the region; then it can be submitted.
  void Place();

  Region* region() const { return region_; }
  // How much of the region it will take.
  uint64_t bytes() const { return aligned_ ? bytes_ : RoundUp(bytes_, kBlockBytes); }
  bool durable() const { return durable_; }
  std::vector<WriteJob>& jobs() { return jobs_; }
  // Forgets the jobs, keeps the memory.
  void Clear();

 private:
  Region* region_ = nullptr;
  bool aligned_ = false;
  bool durable_ = false;
  uint64_t bytes_ = 0;
  std::vector<WriteJob> jobs_;
  std::vector<iovec> iov_;
  AlignedBuffer memory_;  // packed records, or the heads of aligned ones
  std::vector<AlignedBuffer> large_heads_;
  uint64_t used_ = 0;  // of memory_
};

}  // namespace ems::ssd
