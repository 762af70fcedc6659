#pragma once
// A record on its way back from the disk: which blocks to read for it, and whether what came is the
// object that was meant.
#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "mp_server/ssd/disk/record.h"
#include "mp_server/ssd/disk/region_index.h"

namespace ems::ssd {

// The blocks of a record in its region.
struct RecordBlocks {
  explicit RecordBlocks(const Row& row)
      : shape(row.value_bytes, row.key_bytes),
        begin(uint64_t{row.offset_units} * kPackUnit / kBlockBytes * kBlockBytes),
        skip(uint64_t{row.offset_units} * kPackUnit - begin) {}
  // All of it, and its head alone (aligned records: the payload starts at the end of that).
  uint64_t bytes() const { return RoundUp(skip + shape.record_bytes(), kBlockBytes); }
  uint64_t head_bytes() const { return RoundUp(skip + shape.payload_offset(), kBlockBytes); }
  RecordShape shape;
  uint64_t begin;  // in the region
  uint64_t skip;   // from there to the record
};

ExpectedRecord Expect(uint64_t store_id, const ObjectName& name, const Row& row);

// Checks the value against its pieces and the record, and fills `piece_sums` (PieceCount of the
// value of them). Cost: one pass.
bool CheckValue(ConstBytes value, uint64_t checksum, std::span<uint64_t> piece_sums);

}  // namespace ems::ssd
