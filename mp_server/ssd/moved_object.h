#pragma once
// A record that is read from a region to be written to another.
#include <memory>
#include <vector>

#include "common/status.h"
#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/disk/stored_record.h"

namespace ems::ssd {

// Threading: one thread at a time.
class MovedObject final : public DirtyObject {
 public:
  // Errors: kUnavailable  it cannot be read    kDataLoss  it is not what the row says
  static Result<std::unique_ptr<DirtyObject>> Read(RegionFiles* files, int fd, uint64_t store_id,
                                                   const ObjectName& name, const Row& row);
  bool current() const override { return true; }
  std::string_view key() const override;
  ConstBytes value() const override;
  uint64_t checksum() const override { return row_.value_checksum; }
  std::span<const uint64_t> piece_sums() const override { return sums_; }
  uint16_t slot() const override { return row_.slot; }

 private:
  MovedObject(AlignedBuffer memory, MutableBytes record, const Row& row)
      : memory_(std::move(memory)),
        record_(record),
        row_(row),
        shape_(row.value_bytes, row.key_bytes) {}

  AlignedBuffer memory_;
  MutableBytes record_;
  Row row_;
  RecordShape shape_;
  std::vector<uint64_t> sums_;
};

}  // namespace ems::ssd
