#pragma once
// The size classes of objects: slabs of equal chunks for values up to 256 KiB, runs of 16 KiB pages
// above.
//
// Classes are defined by the value, 8 for each doubling (at least 64 bytes apart) and 16 from 4 KiB
// on, where most bytes are; header and key come on top, so that values of a power of two fit
// exactly. Pages are 16 KiB, not 64: a 1 MiB value with its head takes 65 of them and wastes 1.5 %,
// where 64 KiB pages would waste 6 %. Bound: fewer than 160 classes; a slab is at most 2 MiB and
// wastes at most 2 %, except for the first slabs of a class, which are short.
#include <array>
#include <cstdint>

#include "common/bytes.h"
#include "proto/object_header.h"

namespace ems::server {

using shm::kObjectHeaderBytes;

inline constexpr uint64_t kPageBytes = 16 * kKiB;
inline constexpr uint8_t kRunClass = 0xff;  // not in a slab
inline constexpr uint64_t kPackedKeyRoom = 64;
// What a key takes between the header and a packed value, which begins on a cache line.
constexpr uint64_t PackedKeyBytes(uint64_t key_bytes) { return RoundUp(key_bytes, 64); }
// A paged chunk's share of its slab's first pages: header, piece checksums, and a key of up to 224
// bytes.
inline constexpr uint64_t kPagedHeadBytes = 384;
inline constexpr uint64_t kDirectIoBytes = 4 * kKiB;

struct SizeClass {
  uint64_t value_bytes = 0;       // that fit with a key of kPackedKeyRoom
  uint64_t chunk_bytes = 0;       // memory of one chunk, head included
  uint32_t slab_pages = 0;        // preferred length of a slab
  uint32_t slab_pages_short = 0;  // of a class with few objects: wastes at most a twelfth
  uint32_t slab_pages_min = 0;    // shortest worth having: wastes at most a fifth
  bool paged = false;
};

// The memory that one object takes: its size class, or a run of pages.
struct Footprint {
  uint8_t size_class = kRunClass;
  uint32_t pages = 0;  // of a run
  uint64_t head_bytes =
      0;  // of a run: header, piece checksums and key, up to where the value starts
  bool is_run() const { return size_class == kRunClass; }
};

// Threading: immutable.
class SizeClasses final {
 public:
  static const SizeClasses& Get();

  // Cost: O(log classes).
  Footprint For(uint64_t value_bytes, uint64_t key_bytes) const;
  const SizeClass& at(uint8_t size_class) const { return classes_[size_class]; }
  uint8_t count() const { return count_; }
  // How many chunks a slab of `pages` has.
  static uint32_t ChunksIn(const SizeClass& size_class, uint64_t pages);
  // Where the values of a paged slab of `chunks` start.
  static uint64_t PagedValuesAt(uint64_t chunks) {
    return RoundUp(chunks * kPagedHeadBytes, kDirectIoBytes);
  }

 private:
  SizeClasses();
  void Add(uint64_t value_bytes, bool paged);

  std::array<SizeClass, 160> classes_{};
  uint8_t count_ = 0;
  uint8_t packed_count_ = 0;
};

// Bytes of the piece checksums beside the header: none for a single piece.
uint64_t TableBytes(uint64_t value_bytes);

}  // namespace ems::server
