#pragma once
// The format of the SSD tier's files: regions, and records in them. Little-endian, fixed layouts.
//
//   region   RegionHeader in a block of its own, then records up to the region's fill
//   record   RecordHeader · piece checksums · key · payload
//            aligned (payload of 64 KiB or more): starts at a block, so does the payload; it is
//            written from the chunk and read into one without a copy
//            packed (less): at a multiple of 64 bytes, payload right after the key
//
// A record carries all that identifies it: the store, the region's use, the namespace, the key. A
// reader checks all of it and then the payload's checksum, so a torn, stale, misdirected or foreign
// record is a miss.
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/hash.h"
#include "common/ids.h"
#include "mp_server/ssd/disk/aligned_buffer.h"

namespace ems::ssd {

inline constexpr uint32_t kRegionMagic = 0x52534d45;  // "EMSR" as it lies on the disk
inline constexpr uint32_t kRecordMagic = 0x4f534d45;  // "EMSO"
inline constexpr uint16_t kFormatVersion = 2;
inline constexpr uint64_t kPackUnit = 64;
inline constexpr uint64_t kAlignedFrom = 64 * kKiB;

// No store counts that far: a Put or a region with a larger number is damage. Were it believed, the
// numbers behind it would begin at 0 again.
inline constexpr uint64_t kSequenceMax = uint64_t{1} << 63;

struct RegionHeader {
  uint32_t magic = kRegionMagic;
  uint16_t version = kFormatVersion;
  uint16_t reserved = 0;
  uint64_t store_id = 0;
  uint64_t sequence = 0;  // grows with each use of any region
  uint32_t region = 0;
  uint32_t namespace_id = 0;
  uint32_t namespace_generation = 0;
  uint32_t reserved2 = 0;
  uint64_t checksum = 0;  // of what is in front of it
};
static_assert(sizeof(RegionHeader) == 48 && std::is_trivially_copyable_v<RegionHeader>);

struct RecordHeader {
  uint32_t magic = kRecordMagic;
  uint16_t version = kFormatVersion;
  uint16_t slot = 0;
  uint64_t store_id = 0;
  uint64_t region_sequence = 0;
  uint32_t namespace_id = 0;
  uint32_t namespace_generation = 0;
  uint64_t key_hash_lo = 0;
  uint64_t key_hash_hi = 0;
  uint64_t sequence = 0;  // of the Put
  uint64_t value_bytes = 0;
  uint64_t value_checksum = 0;  // CombinePieces
  uint32_t key_bytes = 0;
  uint32_t reserved = 0;
  uint64_t head_checksum = 0;  // of the header in front of it, the piece checksums and the key
};
static_assert(sizeof(RecordHeader) == 88 && std::is_trivially_copyable_v<RecordHeader>);

// An object as it is known in memory and written to the disk.
struct ObjectName {
  NamespaceRef ns;
  Hash128 hash;
  friend constexpr auto operator<=>(const ObjectName&, const ObjectName&) = default;
};

// The offsets of the parts of a record, from its sizes alone.
struct RecordShape {
  RecordShape(uint64_t value, uint64_t key)
      : value_bytes(value),
        table_bytes(PieceCount(value) > 1 ? PieceCount(value) * sizeof(uint64_t) : 0),
        key_bytes(key),
        aligned(value >= kAlignedFrom) {}
  uint64_t head_bytes() const { return sizeof(RecordHeader) + table_bytes + key_bytes; }
  uint64_t payload_offset() const {
    return aligned ? RoundUp(head_bytes(), kBlockBytes) : head_bytes();
  }
  // How much of a region it takes.
  uint64_t record_bytes() const {
    return RoundUp(payload_offset() + value_bytes, aligned ? kBlockBytes : kPackUnit);
  }
  uint64_t value_bytes;
  uint64_t table_bytes;
  uint64_t key_bytes;
  bool aligned;
};

// Fills in everything but the checksums' own fields of `header`, then those; `head` receives
// header, piece checksums and key: RecordShape::head_bytes() of it.
void WriteHead(RecordHeader header, std::span<const uint64_t> piece_sums, std::string_view key,
               MutableBytes head);

// The fields that a record must have to be the one that was meant.
struct ExpectedRecord {
  uint64_t store_id = 0;
  uint64_t region_sequence = 0;
  ObjectName name;
  uint64_t sequence = 0;
  uint64_t value_bytes = 0;
  uint64_t value_checksum = 0;
  uint32_t key_bytes = 0;
};
enum class HeadVerdict : uint8_t {
  kGood,
  kForeign,    // another store's, another region use's, or not a record at all
  kMisplaced,  // a sound record of something else
  kDamaged,    // it names the right thing, but does not match its checksum
};
// `head` is head_bytes() long. With kGood, the piece checksums (empty: there is one piece) and the
// key point into it.
struct Head {
  HeadVerdict verdict = HeadVerdict::kForeign;
  ConstBytes piece_sums;
  std::string_view key;
};
Head CheckHead(ConstBytes head, const ExpectedRecord& expected);

// A region's header, in its block. ReadRegionHeader: false when it is not one.
void WriteRegionHeader(RegionHeader header, MutableBytes block);
bool ReadRegionHeader(ConstBytes block, RegionHeader* header);

}  // namespace ems::ssd
