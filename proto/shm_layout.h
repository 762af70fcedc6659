#pragma once
// The shared memory and the messages between a server and the clients on its host, besides the
// objects themselves: the index, the control page, the session page, and the messages of a
// session's socket.
//
//   control page  one a namespace and server; the server writes, clients read
//   index table   16 shards of buckets; the server writes, clients read. Two buckets, four entries
//                 each, may hold a key; entries name a header in a segment (object_header.h)
//   session page  one a session; the client writes, the server reads each word once and believes
//                 none of them
//
// How a client reads, and why it is right, stands in docs/ONE_SIDED_READS.md; in short:
//   w = entry.generation_tag; header and key at entry.location are checked; bytes are copied;
//   fence; entry.generation_tag == w still, and the shard's word is the same: the bytes are the
//   object's.
// An object is unlinked before its chunk is retired, and retired before it is used again, so an
// entry that still stands proves that the copy was made in time. A generation is never used twice.
//
// Bound: the sizes below; every number that comes from the other side is checked against them.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/hash.h"
#include "proto/object_header.h"

namespace ems::shm {

inline constexpr uint64_t kControlMagic = 0x314c5254'43534d45;  // "EMSCTRL1" as it lies in memory
inline constexpr uint32_t kLayoutVersion = 5;
inline constexpr uint32_t kIndexShards = 16;
inline constexpr uint32_t kEntriesPerBucket = 4;
inline constexpr uint32_t kHazardsMax = 1024;  // views a session may hold at once
inline constexpr uint32_t kTouchesMax = 4096;  // touches between two visits of the server
inline constexpr uint32_t kSamplesMax = 4096;  // sampled look-ups, likewise
inline constexpr uint32_t kReadCells = 64;     // threads of a client that count apart
inline constexpr uint64_t kOffsetUnit = 64;    // headers lie at multiples of it

// Which table a shard is in, and whether it holds every object of the shard.
//   table id << 1 | incomplete. Table id 0: none. Incomplete: a miss proves nothing, ask the
//   server.
constexpr uint64_t ShardWord(uint64_t table_id, bool incomplete) {
  return table_id << 1 | static_cast<uint64_t>(incomplete);
}
constexpr uint64_t TableOf(uint64_t shard_word) { return shard_word >> 1; }
constexpr bool IsIncomplete(uint64_t shard_word) { return (shard_word & 1) != 0; }

struct ControlPage {
  uint64_t magic = kControlMagic;
  uint32_t version = kLayoutVersion;
  uint32_t namespace_id = 0;
  uint32_t namespace_generation = 0;
  uint32_t reserved = 0;
  uint64_t boot_id = 0;  // as in every object's header
  // ViewVersion::packed() that the index follows: objects of slots lost in it are gone from it.
  alignas(64) std::atomic<uint64_t> view{0};
  // Steady clock. After it the index may be out of date: another server may own its slots.
  std::atomic<int64_t> readable_until_ns{0};
  std::atomic<uint32_t> closed{0};  // 1: the namespace is gone from this server
  // Look-ups of keys whose hash.lo is below it are reported, hits and misses. 0: none are.
  std::atomic<uint64_t> sample_below{0};
  alignas(64) std::array<std::atomic<uint64_t>, kIndexShards> shards{};  // ShardWord
};
inline constexpr uint64_t kControlBytes = 4096;
static_assert(sizeof(ControlPage) == 256 && std::is_standard_layout_v<ControlPage>);
static_assert(offsetof(ControlPage, view) == 64 && offsetof(ControlPage, shards) == 128);

// One object. Written in the order location, generation_tag (release); emptied by
// generation_tag = 0.
struct IndexEntry {
  std::atomic<uint64_t> generation_tag{
      0};                             // generation << 8 | low byte of the key's hash; 0: empty
  std::atomic<uint64_t> location{0};  // segment id << 32 | offset of the header / kOffsetUnit
};
struct alignas(64) IndexBucket {
  std::array<IndexEntry, kEntriesPerBucket> entries;
};
static_assert(sizeof(IndexBucket) == 64);
inline constexpr uint64_t kBucketsPerPage = 4096 / sizeof(IndexBucket);

constexpr uint64_t GenerationTag(uint64_t generation, Hash128 hash) {
  return generation << 8 | (hash.lo & 0xff);
}
constexpr uint64_t Location(uint32_t segment, uint64_t offset) {
  return uint64_t{segment} << 32 | offset / kOffsetUnit;
}
constexpr uint32_t SegmentOf(uint64_t location) { return static_cast<uint32_t>(location >> 32); }
constexpr uint64_t OffsetOf(uint64_t location) { return (location & 0xffffffff) * kOffsetUnit; }

// The places of a key in the index: its shard, and two buckets of it. `buckets` of a shard is a
// power of two, at least 2.
struct IndexPlace {
  uint32_t shard = 0;
  uint64_t first = 0;   // bucket number within the shard
  uint64_t second = 0;  // another one
};
constexpr uint32_t ShardOf(Hash128 hash) { return static_cast<uint32_t>(hash.hi >> 60); }
constexpr IndexPlace PlaceOf(Hash128 hash, uint64_t buckets) {
  IndexPlace place;
  place.shard = ShardOf(hash);
  place.first = (hash.lo >> 8) & (buckets - 1);
  // On the same 4 KiB: to a reader a second page costs more than a second line.
  place.second = (place.first & ~(kBucketsPerPage - 1)) |
                 ((hash.lo >> 36) & (kBucketsPerPage - 1) & (buckets - 1));
  if (place.second == place.first) place.second ^= 1;
  return place;
}
inline constexpr uint64_t kBucketsPerShardMax = uint64_t{1} << 28;
// The file of a table: shard 0's buckets, then shard 1's, and so on.
constexpr uint64_t TableBytesOf(uint64_t buckets_per_shard) {
  return kIndexShards * buckets_per_shard * sizeof(IndexBucket);
}

// A use of an object, for the server's LRU order; or a look-up of a key whose hash is sampled.
struct Touch {
  std::atomic<uint64_t> hash_lo{0};
  std::atomic<uint64_t> hash_hi{0};
};

// What some threads of the client have read without the server since the session began. Calls that
// went over the socket after all are not in it: the server counts those itself.
struct alignas(64) ReadCell {
  std::atomic<uint64_t> hits{0};    // values read, also in part or in place
  std::atomic<uint64_t> misses{0};  // keys of such reads that were not there
  std::atomic<uint64_t> bytes{0};   // of the hits: what the caller was given
  std::atomic<uint64_t> found{0};   // keys that were only looked for, and there
  std::atomic<uint64_t> absent{0};  // and not there
};
static_assert(sizeof(ReadCell) == 64);

// Written by the client alone.
struct SessionPage {
  // Hazard pointers at or above are not in use.
  alignas(64) std::atomic<uint32_t> hazard_end{0};
  // How many touches were ever written; touch i lies at i % kTouchesMax.
  alignas(64) std::atomic<uint64_t> touch_count{0};
  // Each 0, or the generation_tag of the entry whose bytes must stay.
  alignas(64) std::array<std::atomic<uint64_t>, kHazardsMax> hazards{};
  std::array<Touch, kTouchesMax> touches{};
  // Cells at or above have never been used.
  alignas(64) std::atomic<uint32_t> read_cell_end{0};
  std::array<ReadCell, kReadCells> read_cells{};
  // Look-ups of sampled keys that were settled without the server, as touches are written. A ring
  // of their own: none is left out, and misses are among them.
  alignas(64) std::atomic<uint64_t> sample_count{0};
  alignas(64) std::array<Touch, kSamplesMax> samples{};
};
inline constexpr uint64_t kSessionBytes = sizeof(SessionPage);
static_assert(kSessionBytes % 64 == 0 && std::is_standard_layout_v<SessionPage>);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Messages of a session's socket, each a fixed frame; descriptors travel beside them (SCM_RIGHTS).
enum class SessionOp : uint32_t {
  // Server, first of all: status; id = session number, secret; bytes = most bytes its views may
  // pin. Descriptors: control page (read-only), session page (read-write).
  kWelcome = 1,
  // Client: segment `id`, please. Server: the same with status, bytes and one read-only descriptor.
  kSegment = 2,
  // The same for index table `id`; bytes = TableBytesOf(buckets per shard).
  kTable = 3,
  // Client: a sealed memfd, from whose first `bytes` it will Put; later, more. Server: status,
  // bytes.
  kRegister = 4,
  // Server, unasked: segment or table `id` is not used any more; unmap it.
  kSegmentGone = 5,
  kTableGone = 6,
  // Client, after kSegmentGone: segment `id` is unmapped here. Not answered.
  kSegmentDropped = 7,
};

struct SessionMessage {
  SessionOp op = SessionOp::kWelcome;
  uint32_t status = 0;  // wire::WireStatus
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t secret = 0;          // kWelcome: names the session in staged Puts
  std::array<char, 96> text{};  // NUL-terminated; why, when status is not OK
};
static_assert(sizeof(SessionMessage) == 128 && std::is_trivially_copyable_v<SessionMessage>);

}  // namespace ems::shm
