#include "mp_server/ssd/write_group.h"

#include <cstring>
#include <utility>

#include "common/check.h"

namespace ems::ssd {
namespace {

RecordHeader HeaderOf(const WriteJob& job, const Region& region, uint64_t store_id) {
  RecordHeader header;
  header.slot = job.object->slot();
  header.store_id = store_id;
  header.region_sequence = region.sequence;
  header.namespace_id = job.name.ns.id.value();
  header.namespace_generation = job.name.ns.generation;
  header.key_hash_lo = job.name.hash.lo;
  header.key_hash_hi = job.name.hash.hi;
  header.sequence = job.sequence;
  header.value_bytes = job.value_bytes;
  header.value_checksum = job.object->checksum();
  return header;
}

}  // namespace

void WriteGroup::Start(Region* region, bool aligned) {
  region_ = region;
  aligned_ = aligned;
  durable_ = false;
  bytes_ = used_ = 0;
  (void)memory_.Take(kGroupBytes);
}

bool WriteGroup::Fits(const RecordShape& shape) const {
  if (jobs_.empty()) return true;
  return jobs_.size() < kGroupJobsMax && bytes_ + shape.record_bytes() <= kGroupBytes;
}

void WriteGroup::Add(WriteJob job, const RecordShape& shape, uint64_t store_id) {
  EMS_CHECK(region_ != nullptr && job.object != nullptr, "nothing to write, or nowhere");
  const DirtyObject& object = *job.object;
  const RecordHeader header = HeaderOf(job, *region_, store_id);
  const uint64_t head_bytes = shape.payload_offset();
  const uint64_t in_memory = aligned_ ? head_bytes : shape.record_bytes();
  MutableBytes at;
  if (used_ + in_memory <= kGroupBytes) {
    at = memory_.Take(kGroupBytes).subspan(used_, in_memory);
    used_ += in_memory;
  } else {  // of a value of 100 MiB and more
    at = large_heads_.emplace_back().Take(in_memory);
  }
  const auto table = shape.table_bytes > 0 ? object.piece_sums() : std::span<const uint64_t>();
  WriteHead(header, table, object.key(), at.first(shape.head_bytes()));
  const ConstBytes value = object.value();
  if (aligned_) {
    EMS_CHECK(reinterpret_cast<uintptr_t>(value.data()) % kBlockBytes == 0,
              "a value of {} bytes does not start on a block", value.size());
    std::memset(at.data() + shape.head_bytes(), 0, head_bytes - shape.head_bytes());
    iov_.push_back({at.data(), head_bytes});
    iov_.push_back({const_cast<std::byte*>(value.data()), RoundUp(value.size(), kBlockBytes)});
  } else {
    if (!value.empty()) std::memcpy(at.data() + head_bytes, value.data(), value.size());
    const uint64_t filled = head_bytes + value.size();
    std::memset(at.data() + filled, 0, in_memory - filled);
  }
  job.row.sequence = job.sequence;
  job.row.region_sequence = region_->sequence;
  job.row.value_checksum = header.value_checksum;
  job.row.value_bytes = job.value_bytes;
  job.row.region = region_->id;
  job.row.offset_units = static_cast<uint32_t>(bytes_ / kPackUnit);
  job.row.key_bytes = static_cast<uint32_t>(object.key().size());
  job.row.slot = header.slot;
  bytes_ += shape.record_bytes();
  durable_ = durable_ || job.durable;
  jobs_.push_back(std::move(job));
}

void WriteGroup::Place() {
  const uint64_t all = bytes();
  if (!aligned_) {  // the last block is filled up
    const MutableBytes memory = memory_.Take(kGroupBytes);
    std::memset(memory.data() + bytes_, 0, all - bytes_);
    iov_.push_back({memory.data(), all});
  }
  for (WriteJob& job : jobs_)
    job.row.offset_units += static_cast<uint32_t>(region_->fill_bytes / kPackUnit);
  fd = region_->fd.get();
  write = true;
  offset = region_->fill_bytes;
  parts = iov_;
  region_->fill_bytes += all;
}

void WriteGroup::Clear() {
  jobs_.clear();
  iov_.clear();
  large_heads_.clear();
  region_ = nullptr;
}

}  // namespace ems::ssd
