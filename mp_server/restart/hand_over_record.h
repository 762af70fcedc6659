#pragma once
// The record that a server which stops in order leaves to its next process, beside the memory of
// its segments: which objects lie where, and what this server knew of its slots by then.
//
//   head · segments · namespaces · runs, by namespace · objects, by namespace, the coldest first
//
// Fixed little-endian rows as they lie in memory, one checksum over all. Invariant: what Decode
// returns is in itself consistent: each number is in range, a segment is of one namespace, its runs
// ascend and do not overlap, an object's header lies in its run and its size fits. Whether the
// bytes in the segments are what it says is for who has them. Bound: rows as the file has room for.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::server {

inline constexpr uint64_t kHandOverMagic = 0x31525648'53534d45;  // "EMSSHVR1" as it lies in memory
inline constexpr uint32_t kHandOverFormat = 1;

struct HandOverHead {
  uint64_t magic = kHandOverMagic;
  uint32_t format = kHandOverFormat;
  uint32_t node_id = 0;
  uint64_t layout = 0;  // LayoutFingerprint() of who wrote it
  uint64_t number = 0;  // as in the data folder: DataDir::SetHandOver
  uint64_t folder_id = 0;
  uint64_t cluster = 0;
  uint64_t lineage = 0;              // under which the server was registered
  uint64_t view = 0;                 // packed, the one that was installed last, and of it:
  uint64_t history = 0;              // its history, where it showed this lineage
  uint64_t highest_view = 0;         // packed, as the data folder has it
  uint64_t highest_fingerprint = 0;  // likewise
  uint64_t pool_boot_id = 0;         // in each object's header
  uint64_t tier_mark = 0;            // of the SSD tier as it was closed; 0: there is none
  int64_t unix_ms = 0;
  uint64_t segments = 0, namespaces = 0, runs = 0, objects = 0;  // rows of each
  uint64_t checksum = 0;  // XXH3-64 of the whole record, with 0 in this place
};
static_assert(sizeof(HandOverHead) == 152 && std::is_trivially_copyable_v<HandOverHead>);

struct SegmentRow {
  uint64_t device = 0, inode = 0;  // of its file
  uint64_t bytes = 0;
  uint32_t id = 0;
  uint32_t page_kind = 0;
  friend bool operator==(const SegmentRow&, const SegmentRow&) = default;
};
struct NamespaceRow {
  uint32_t id = 0, generation = 0;
  uint64_t newest_generation = 0;  // of its chunks
  uint64_t runs = 0, objects = 0;  // how many of those rows are its own
  friend bool operator==(const NamespaceRow&, const NamespaceRow&) = default;
};
struct RunRow {
  uint32_t segment = 0;  // which of the segments' rows
  uint32_t first_page = 0, pages = 0;
  uint32_t chunks = 0;  // of a slab
  uint32_t size_class = 0;
  uint32_t reserved = 0;
  friend bool operator==(const RunRow&, const RunRow&) = default;
};
struct ObjectRow {
  uint32_t run = 0;           // which of the runs' rows
  uint32_t offset_units = 0;  // of the header in its segment, in shm::kOffsetUnit
  uint64_t generation = 0;
  uint64_t hash_lo = 0, hash_hi = 0;
  uint64_t value_bytes = 0;
  uint64_t checksum = 0;
  int64_t touched_ns = 0, linked_ns = 0;  // on the machine's steady clock
  uint16_t key_bytes = 0;
  uint16_t slot = 0;
  uint32_t reserved = 0;
  friend bool operator==(const ObjectRow&, const ObjectRow&) = default;
};
static_assert(sizeof(SegmentRow) == 32 && sizeof(NamespaceRow) == 32 && sizeof(RunRow) == 24 &&
              sizeof(ObjectRow) == 72);

// A value. The counts and the checksum in `head` are Encode's.
struct HandOver {
  HandOverHead head;
  std::vector<SegmentRow> segments;
  std::vector<NamespaceRow> namespaces;
  std::vector<RunRow> runs;
  std::vector<ObjectRow> objects;

  uint64_t size_bytes() const;
  // Into `out`, which has size_bytes().
  void Encode(MutableBytes out);
  // Of `bytes`, which may end with more. Errors: kFailedPrecondition  of another format or layout
  // than this program's: it can be read by others    kDataLoss  damaged, or not such a record
  static Result<HandOver> Decode(ConstBytes bytes);
};

// Equal for programs that lay objects out in the same way: size classes, pages, headers, the rows
// above. Cost: about 2 µs.
uint64_t LayoutFingerprint();

}  // namespace ems::server
