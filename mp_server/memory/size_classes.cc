#include "mp_server/memory/size_classes.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/checksum.h"

namespace ems::server {
namespace {

constexpr uint64_t kValueBytesMin = 64;
constexpr uint64_t kFineFrom = 4 * kKiB;
constexpr uint64_t kPagedFrom = 64 * kKiB;
constexpr uint64_t kSlabValueMax = 256 * kKiB;
constexpr uint64_t kSlabPagesMin = 4;
constexpr uint64_t kSlabPagesMax = 2 * kMiB / kPageBytes - 1;  // a 2 MiB segment must hold one

// The shortest slab of at least `pages_min` that wastes at most one part in `parts`; 0: there is
// none.
uint32_t SlabPages(const SizeClass& size_class, uint64_t pages_min, uint64_t parts) {
  for (uint64_t pages = pages_min; pages <= kSlabPagesMax; ++pages) {
    const uint64_t used = SizeClasses::ChunksIn(size_class, pages) * size_class.chunk_bytes;
    const uint64_t all = pages * kPageBytes;
    if (used > 0 && (all - used) * parts <= all) return static_cast<uint32_t>(pages);
  }
  return 0;
}

uint64_t Step(uint64_t value_bytes) {
  return std::max<uint64_t>(64, std::bit_floor(value_bytes) / (value_bytes < kFineFrom ? 8 : 16));
}

}  // namespace

uint64_t TableBytes(uint64_t value_bytes) {
  const uint64_t pieces = PieceCount(value_bytes);
  return pieces > 1 ? pieces * sizeof(uint64_t) : 0;
}

const SizeClasses& SizeClasses::Get() {
  static const SizeClasses classes;
  return classes;
}

SizeClasses::SizeClasses() {
  uint64_t value = kValueBytesMin;
  while (value < kPagedFrom) {
    Add(value, false);
    value += Step(value);
  }
  packed_count_ = count_;
  for (value = kPagedFrom; value <= kSlabValueMax; value += Step(value)) Add(value, true);
}

void SizeClasses::Add(uint64_t value_bytes, bool paged) {
  EMS_CHECK(count_ < classes_.size(), "{} classes", count_);
  SizeClass& added = classes_[count_++];
  added.value_bytes = value_bytes;
  added.paged = paged;
  added.chunk_bytes = value_bytes + (paged ? kPagedHeadBytes : kObjectHeaderBytes + kPackedKeyRoom);
  added.slab_pages_min = SlabPages(added, 1, 5);
  added.slab_pages_short = SlabPages(added, 1, 12);
  added.slab_pages = SlabPages(added, kSlabPagesMin, 100);
  if (added.slab_pages == 0) added.slab_pages = SlabPages(added, kSlabPagesMin, 50);
  EMS_CHECK(added.slab_pages_min > 0 && added.slab_pages > 0, "no slab for values of {} bytes",
            value_bytes);
}

uint32_t SizeClasses::ChunksIn(const SizeClass& size_class, uint64_t pages) {
  const uint64_t bytes = pages * kPageBytes;
  uint64_t chunks = bytes / size_class.chunk_bytes;
  while (size_class.paged && chunks > 0 &&
         PagedValuesAt(chunks) + chunks * size_class.value_bytes > bytes)
    --chunks;
  return static_cast<uint32_t>(chunks);
}

Footprint SizeClasses::For(uint64_t value_bytes, uint64_t key_bytes) const {
  const auto begin = classes_.begin();
  const auto packed_end = begin + packed_count_;
  const auto end = begin + count_;
  const uint64_t packed_bytes = kObjectHeaderBytes + PackedKeyBytes(key_bytes) + value_bytes;
  const auto packed =
      std::lower_bound(begin, packed_end, packed_bytes,
                       [](const SizeClass& c, uint64_t bytes) { return c.chunk_bytes < bytes; });
  if (packed != packed_end) return {static_cast<uint8_t>(packed - begin), 0, 0};
  const uint64_t head_bytes = kObjectHeaderBytes + TableBytes(value_bytes) + key_bytes;
  if (head_bytes <= kPagedHeadBytes) {
    const auto paged =
        std::lower_bound(packed_end, end, value_bytes,
                         [](const SizeClass& c, uint64_t bytes) { return c.value_bytes < bytes; });
    if (paged != end) return {static_cast<uint8_t>(paged - begin), 0, 0};
  }
  const uint64_t head_room = RoundUp(head_bytes, kDirectIoBytes);
  return {kRunClass,
          static_cast<uint32_t>(RoundUp(head_room + value_bytes, kPageBytes) / kPageBytes),
          head_room};
}

}  // namespace ems::server
