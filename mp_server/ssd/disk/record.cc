#include "mp_server/ssd/disk/record.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/check.h"

namespace ems::ssd {
namespace {

constexpr uint64_t kSumOffset = offsetof(RecordHeader, head_checksum);

uint64_t HeadSum(ConstBytes head) {
  const uint64_t rest = Hash64(head.subspan(sizeof(RecordHeader)));
  return Hash64(head.first(kSumOffset), rest);
}

}  // namespace

void WriteHead(RecordHeader header, std::span<const uint64_t> piece_sums, std::string_view key,
               MutableBytes head) {
  const uint64_t table_bytes = piece_sums.size_bytes();
  EMS_CHECK(head.size() == sizeof(header) + table_bytes + key.size(), "head of {} bytes",
            head.size());
  header.key_bytes = static_cast<uint32_t>(key.size());
  std::memcpy(head.data(), &header, sizeof(header));
  std::byte* at = head.data() + sizeof(header);
  if (table_bytes > 0) std::memcpy(at, piece_sums.data(), table_bytes);
  std::memcpy(at + table_bytes, key.data(), key.size());
  const uint64_t sum = HeadSum(head);
  std::memcpy(head.data() + kSumOffset, &sum, sizeof(sum));
}

Head CheckHead(ConstBytes head, const ExpectedRecord& expected) {
  RecordHeader header;
  const RecordShape shape(expected.value_bytes, expected.key_bytes);
  if (head.size() < shape.head_bytes()) return {};
  head = head.first(shape.head_bytes());
  std::memcpy(&header, head.data(), sizeof(header));
  if (header.magic != kRecordMagic || header.version != kFormatVersion ||
      header.store_id != expected.store_id || header.region_sequence != expected.region_sequence)
    return {};
  const bool same =
      header.namespace_id == expected.name.ns.id.value() &&
      header.namespace_generation == expected.name.ns.generation &&
      header.key_hash_lo == expected.name.hash.lo && header.key_hash_hi == expected.name.hash.hi &&
      header.sequence == expected.sequence && header.value_bytes == expected.value_bytes &&
      header.value_checksum == expected.value_checksum && header.key_bytes == expected.key_bytes;
  if (!same) return {HeadVerdict::kMisplaced, {}, {}};
  if (header.head_checksum != HeadSum(head)) return {HeadVerdict::kDamaged, {}, {}};
  return {HeadVerdict::kGood, head.subspan(sizeof(header), shape.table_bytes),
          AsText(head.last(shape.key_bytes))};
}

void WriteRegionHeader(RegionHeader header, MutableBytes block) {
  header.checksum = 0;
  const auto raw = std::as_bytes(std::span(&header, 1));
  header.checksum = Hash64(raw.first(offsetof(RegionHeader, checksum)));
  std::fill(block.begin(), block.end(), std::byte{0});
  std::memcpy(block.data(), &header, sizeof(header));
}

bool ReadRegionHeader(ConstBytes block, RegionHeader* header) {
  if (block.size() < sizeof(*header)) return false;
  std::memcpy(header, block.data(), sizeof(*header));
  return header->magic == kRegionMagic && header->version == kFormatVersion &&
         header->sequence <= kSequenceMax &&
         header->checksum == Hash64(block.first(offsetof(RegionHeader, checksum)));
}

}  // namespace ems::ssd
