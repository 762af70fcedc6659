#pragma once
// The memory that a sender and a receiver share, as each lays it out: fields, entries, doorbells.
//
//   page 0                the receiver's: doorbell of the data, probe word; the sender's: doorbell
//                         of the acks; whether either sleeps
//   fields                32 bytes an entry and one for cancels, written by the sender
//   acks                  8 bytes for each field, written by the receiver
//   probe                 a dummy payload, written by the sender
//   entries                 entry_bytes each, written by the sender
//
// After XDS §3.1: data first, then the field, whose tail is stored last; the ack frees the entry.
// Unlike there a field belongs to an entry, not to a pair of cores, so that many chunks are on
// their way at once. Both sides are hostile to each other: every word is read once and checked.
#include <atomic>
#include <cstdint>

#include "common/bytes.h"

namespace ems::fabric {

inline constexpr uint32_t kRingEntriesMax = 1024;
inline constexpr uint64_t kRingEntryBytesMax = 64 * kMiB;
inline constexpr uint64_t kRingPageBytes = 4 * kKiB;
inline constexpr uint64_t kRingProbeBytes = 4 * kKiB;

// The fields that the sender writes for a chunk. The tail is stored last, with release; each
// entry's tails grow.
struct RingField {
  std::atomic<uint64_t> event_id;
  std::atomic<uint32_t> chunk_id;  // with flags
  std::atomic<uint32_t> chunk_bytes;
  std::atomic<uint32_t> message;   // tells messages with the same event id apart
  std::atomic<uint32_t> checksum;  // of the chunk, if the channel has checksums
  std::atomic<uint64_t> tail;
};
static_assert(sizeof(RingField) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint32_t kRingChunkMask = 0x00ff'ffff;
inline constexpr uint32_t kRingLastChunk = 0x8000'0000;
// In the field behind those of the entries: the sender gives the message up.
inline constexpr uint32_t kRingCancel = 0x4000'0000;

// An ack is the tail that it answers, and what became of the chunk.
enum class RingAck : uint8_t { kTaken, kGivenUp, kTooLarge, kCorrupt };
constexpr uint64_t RingAckWord(uint64_t tail, RingAck ack) {
  return tail << 8 | static_cast<uint64_t>(ack);
}

// Page 0. Each word has a cache line of its own.
struct RingPage {
  alignas(64) std::atomic<uint64_t> data_bell;        // by the sender: counts fields stored
  alignas(64) std::atomic<uint64_t> ack_bell;         // by the receiver: counts acks stored
  alignas(64) std::atomic<uint32_t> receiver_asleep;  // the side that rings clears it
  alignas(64) std::atomic<uint32_t> sender_asleep;
  alignas(64) std::atomic<uint64_t> probe;      // by the sender: number of the probe
  std::atomic<uint64_t> probe_checksum;         // and of its payload
  alignas(64) std::atomic<uint64_t> probe_ack;  // by the receiver
};
static_assert(sizeof(RingPage) <= kRingPageBytes);

// The receiver's first message to the sender; four descriptors come with it: the memory, and the
// eventfds of data, acks and probes.
struct RingHello {
  static constexpr uint64_t kMagic = 0x676e'6952'534d'4531;
  uint64_t magic = kMagic;
  uint32_t entries = 0;
  uint32_t checksums = 0;  // 0 or 1
  uint64_t entry_bytes = 0;
  uint64_t memory_bytes = 0;
};
static_assert(sizeof(RingHello) == 32);

// The offsets of the ring's parts. Threading: immutable.
class RingLayout final {
 public:
  // `entries` 1 to kRingEntriesMax; `entry_bytes` a multiple of 4 KiB up to kRingEntryBytesMax.
  static constexpr bool IsValid(uint64_t entries, uint64_t entry_bytes) {
    return entries > 0 && entries <= kRingEntriesMax && entry_bytes > 0 &&
           entry_bytes % kRingPageBytes == 0 && entry_bytes <= kRingEntryBytesMax;
  }
  constexpr RingLayout(uint32_t entries, uint64_t entry_bytes)
      : entries_(entries), entry_bytes_(entry_bytes) {}

  constexpr uint32_t entries() const { return entries_; }
  constexpr uint64_t entry_bytes() const { return entry_bytes_; }
  constexpr uint64_t fields_at() const { return kRingPageBytes; }
  constexpr uint64_t acks_at() const {
    return fields_at() + RoundUp((entries_ + 1) * sizeof(RingField), kRingPageBytes);
  }
  constexpr uint64_t probe_at() const {
    return acks_at() + RoundUp((entries_ + 1) * sizeof(uint64_t), kRingPageBytes);
  }
  constexpr uint64_t entries_at() const { return probe_at() + kRingProbeBytes; }
  constexpr uint64_t memory_bytes() const { return entries_at() + entries_ * entry_bytes_; }

  // In memory of memory_bytes() that begins at `base`, page-aligned. `entry` may be entries(): the
  // field and ack of cancels.
  static RingPage* Page(std::byte* base) { return reinterpret_cast<RingPage*>(base); }
  RingField* Field(std::byte* base, uint32_t entry) const {
    return reinterpret_cast<RingField*>(base + fields_at()) + entry;
  }
  std::atomic<uint64_t>* Ack(std::byte* base, uint32_t entry) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(base + acks_at()) + entry;
  }
  MutableBytes Probe(std::byte* base) const { return {base + probe_at(), kRingProbeBytes}; }
  std::byte* Entry(std::byte* base, uint32_t entry) const {
    return base + entries_at() + entry * entry_bytes_;
  }

 private:
  uint32_t entries_;
  uint64_t entry_bytes_;
};

}  // namespace ems::fabric
