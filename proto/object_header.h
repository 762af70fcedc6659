#pragma once
// The header in front of every object in a segment: 128 bytes, the same for every reader, on this
// host or another.
//
// Two layouts, told apart by payload_offset:
//   packed  header · key · payload         values below 64 KiB; 64-byte aligned
//   paged   header · piece checksums (8 bytes each, if there are two or more) · key   and
//   elsewhere the payload, 4 KiB aligned,
//           so that direct I/O needs no copy. The heads of a slab's chunks lie together in its
//           first pages and the payloads follow: a head never costs a page of its own, which would
//           be 6 % of a 64 KiB value.
// All offsets count from the header. The value of one piece has no table: its piece checksum is
// `checksum`.
//
// Invariant: magic .. reserved are written before the state becomes kValid and not changed until
// the chunk is free again.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems::shm {

inline constexpr uint32_t kObjectMagic = 0x42534d45;  // "EMSB" as it lies in memory
inline constexpr uint16_t kObjectHeaderVersion = 2;

// kFree → kFilling → kValid → kRetired → kFree. Only kValid may be read by others.
enum class ChunkState : uint8_t {
  kFree = 0,
  kFilling = 1,
  kValid = 2,
  kRetired = 3,
  kQuarantine = 4
};

struct ObjectHeader {
  uint32_t magic = kObjectMagic;
  uint16_t version = kObjectHeaderVersion;
  uint16_t header_bytes = 128;
  // generation << 8 | ChunkState. The generation differs for each use of any chunk, over restarts
  // too.
  std::atomic<uint64_t> state_generation{0};
  uint64_t boot_id = 0;
  uint32_t namespace_id = 0;
  uint32_t namespace_generation = 0;
  uint64_t key_hash_lo = 0;
  uint64_t key_hash_hi = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;  // of the payload, CombinePieces
  uint64_t put_sequence = 0;
  uint32_t flags = 0;
  uint16_t size_class = 0;
  uint16_t slot = 0;
  uint32_t created_s = 0;  // seconds since the server's start
  uint32_t ttl_s = 0;      // 0: none
  uint32_t key_bytes = 0;
  uint32_t key_offset = 0;
  uint32_t table_offset = 0;  // 0: one piece, no table
  uint32_t piece_bytes_log2 = 16;
  uint64_t payload_offset = 0;
  uint64_t reserved = 0;
  // Low half of XXH3-64 over bytes 16 .. 119 seeded with bytes 0 .. 7: the state changes alone.
  // XXH3 instead of a CRC keeps the project at one hash library, and costs less than a CRC32C at
  // this length.
  uint32_t header_checksum = 0;
  uint32_t reserved2 = 0;
};
static_assert(sizeof(ObjectHeader) == 128 && std::is_standard_layout_v<ObjectHeader>);
static_assert(offsetof(ObjectHeader, state_generation) == 8 &&
              offsetof(ObjectHeader, boot_id) == 16);
static_assert(offsetof(ObjectHeader, namespace_id) == 24 &&
              offsetof(ObjectHeader, key_hash_lo) == 32);
static_assert(offsetof(ObjectHeader, payload_bytes) == 48 &&
              offsetof(ObjectHeader, checksum) == 56);
static_assert(offsetof(ObjectHeader, put_sequence) == 64 && offsetof(ObjectHeader, flags) == 72);
static_assert(offsetof(ObjectHeader, created_s) == 80 && offsetof(ObjectHeader, key_bytes) == 88);
static_assert(offsetof(ObjectHeader, table_offset) == 96 &&
              offsetof(ObjectHeader, payload_offset) == 104);
static_assert(offsetof(ObjectHeader, header_checksum) == 120);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint64_t kObjectHeaderBytes = sizeof(ObjectHeader);

constexpr uint64_t StateWord(uint64_t generation, ChunkState state) {
  return generation << 8 | static_cast<uint64_t>(state);
}

// What header_checksum must be. Cost: about 15 ns.
inline uint32_t HeaderChecksum(const ObjectHeader& header) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  uint64_t seed = 0;
  std::memcpy(&seed, bytes, sizeof(seed));
  return static_cast<uint32_t>(Hash64(ConstBytes(bytes + 16, 104), seed));
}

}  // namespace ems::shm
