#include "mp_server/ssd/disk/stored_record.h"

namespace ems::ssd {

ExpectedRecord Expect(uint64_t store_id, const ObjectName& name, const Row& row) {
  ExpectedRecord expected;
  expected.store_id = store_id;
  expected.region_sequence = row.region_sequence;
  expected.name = name;
  expected.sequence = row.sequence;
  expected.value_bytes = row.value_bytes;
  expected.value_checksum = row.value_checksum;
  expected.key_bytes = row.key_bytes;
  return expected;
}

bool CheckValue(ConstBytes value, uint64_t checksum, std::span<uint64_t> piece_sums) {
  HashPieces(value, piece_sums);
  return CombinePieces(piece_sums.first(PieceCount(value.size()))) == checksum;
}

}  // namespace ems::ssd
