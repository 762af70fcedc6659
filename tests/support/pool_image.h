#pragma once
// What a server shares of one namespace, made by hand: control page, one index table, one segment,
// each a sealed memfd, written step by step as a server would write them.
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "common/object_key.h"
#include "fabric/shm/shm_segment.h"
#include "mp_sdk/internal/object_reader.h"
#include "proto/shm_layout.h"

namespace ems::testing {

// Memory of this process as a peer's. Borrows the bytes.
class PlainMemory final : public fabric::RemoteMemory {
 public:
  explicit PlainMemory(MutableBytes bytes, bool addressable = true)
      : bytes_(bytes), addressable_(addressable) {}
  uint64_t size_bytes() const override { return bytes_.size(); }
  uint64_t LoadWord(uint64_t offset) const override {
    EMS_CHECK(offset % 8 == 0 && offset + 8 <= bytes_.size(), "word at {} of {}", offset,
              bytes_.size());
    return reinterpret_cast<const std::atomic<uint64_t>*>(bytes_.data() + offset)->load();
  }
  void Read(uint64_t offset, MutableBytes into) const override {
    EMS_CHECK(offset <= bytes_.size() && into.size() <= bytes_.size() - offset,
              "{} bytes at {} of {}", into.size(), offset, bytes_.size());
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }
  const std::byte* address() const override { return addressable_ ? bytes_.data() : nullptr; }

 private:
  MutableBytes bytes_;
  bool addressable_;
};

// Threading: caller locks.
class PoolImage final : public internal::PoolMemory {
 public:
  static constexpr uint64_t kTableId = 7;
  static constexpr uint32_t kSegmentId = 3;
  static constexpr uint64_t kBootId = 0xb007;
  static constexpr NamespaceRef kNs{NamespaceId(5), 2};
  static constexpr uint64_t kView = ViewVersion(1, 4).packed();

  explicit PoolImage(uint64_t segment_bytes = 2 * kMiB, uint64_t buckets_per_shard = 4)
      : control_(Make(shm::kControlBytes)),
        table_(Make(shm::TableBytesOf(buckets_per_shard))),
        segment_(Make(segment_bytes)),
        buckets_(buckets_per_shard),
        control_memory_(control_.bytes()),
        table_memory_(table_.bytes()),
        segment_memory_(segment_.bytes()) {
    EMS_CHECK(table_.size_bytes() == shm::TableBytesOf(buckets_per_shard), "whole pages only");
    auto* page = new (control_.bytes().data()) shm::ControlPage;
    page->namespace_id = kNs.id.value();
    page->namespace_generation = kNs.generation;
    page->boot_id = kBootId;
    page->view = kView;
    page->readable_until_ns = INT64_MAX;
    for (auto& shard : page->shards) shard = shm::ShardWord(kTableId, false);
  }

  shm::ControlPage& page() { return *reinterpret_cast<shm::ControlPage*>(control_.bytes().data()); }
  const fabric::ShmSegment& control_file() const { return control_; }
  const fabric::ShmSegment& table_file() const { return table_; }
  const fabric::ShmSegment& segment_file() const { return segment_; }
  shm::ObjectHeader& header(uint64_t at) {
    return *reinterpret_cast<shm::ObjectHeader*>(segment_.bytes().data() + at);
  }
  internal::PoolIdentity identity() const { return {kNs, kBootId}; }

  // Bytes that an object takes, from its header on.
  static uint64_t SizeOf(std::string_view key, std::string_view value) {
    return PayloadOffset(key, value) + RoundUp(value.size(), 64);
  }
  // A whole header for an object at `at`, in state kFilling; its other parts are not written.
  static shm::ObjectHeader* MakeHeader(std::string_view key, std::string_view value,
                                       uint64_t generation, void* at) {
    auto* header = new (at) shm::ObjectHeader;
    const Hash128 hash = KeyHash(key);
    header->state_generation = shm::StateWord(generation, shm::ChunkState::kFilling);
    header->boot_id = kBootId;
    header->namespace_id = kNs.id.value();
    header->namespace_generation = kNs.generation;
    header->key_hash_lo = hash.lo;
    header->key_hash_hi = hash.hi;
    header->payload_bytes = value.size();
    header->checksum = Checksum(AsBytes(value));
    header->put_sequence = generation;
    header->key_bytes = static_cast<uint32_t>(key.size());
    header->key_offset = static_cast<uint32_t>(shm::kObjectHeaderBytes + TableBytes(value));
    header->table_offset = TableBytes(value) > 0 ? shm::kObjectHeaderBytes : 0;
    header->payload_offset = PayloadOffset(key, value);
    Seal(header);
    return header;
  }
  static void Seal(shm::ObjectHeader* header) {
    header->header_checksum = shm::HeaderChecksum(*header);
  }
  // The object as it lies in memory: header (kFilling), piece sums, key, payload.
  static std::vector<std::byte> Lay(std::string_view key, std::string_view value,
                                    uint64_t generation) {
    std::vector<std::byte> bytes(SizeOf(key, value));
    const shm::ObjectHeader& header = *MakeHeader(key, value, generation, bytes.data());
    std::vector<uint64_t> sums(PieceCount(value.size()));
    PieceHasher hasher;
    hasher.Start(sums);
    hasher.Update(AsBytes(value));
    (void)hasher.Finish();
    if (sums.size() > 1) std::memcpy(bytes.data() + 128, sums.data(), sums.size() * 8);
    std::memcpy(bytes.data() + header.key_offset, key.data(), key.size());
    std::memcpy(bytes.data() + header.payload_offset, value.data(), value.size());
    return bytes;
  }

  // Writes the object at `at` (a multiple of 64) and makes it valid; Link makes it visible.
  void Write(uint64_t at, std::string_view key, std::string_view value, uint64_t generation) {
    const std::vector<std::byte> bytes = Lay(key, value, generation);
    EMS_CHECK(at % 64 == 0 && at + bytes.size() <= segment_.size_bytes());
    std::memcpy(segment_.bytes().data() + at, bytes.data(), bytes.size());
    SetState(at, generation, shm::ChunkState::kValid);
  }
  void SetState(uint64_t at, uint64_t generation, shm::ChunkState state) {
    header(at).state_generation = shm::StateWord(generation, state);
  }
  void Link(std::string_view key, uint64_t at, uint64_t generation, uint32_t segment = kSegmentId) {
    shm::IndexEntry* entry = Find(KeyHash(key), 0);
    EMS_CHECK(entry != nullptr, "both buckets of {} are full", key);
    entry->location = shm::Location(segment, at);
    entry->generation_tag = shm::GenerationTag(generation, KeyHash(key));
  }
  void Unlink(std::string_view key, uint64_t generation) {
    if (shm::IndexEntry* entry = EntryOf(key, generation)) entry->generation_tag = 0;
  }
  shm::IndexEntry* EntryOf(std::string_view key, uint64_t generation) {
    return Find(KeyHash(key), shm::GenerationTag(generation, KeyHash(key)));
  }
  void Put(uint64_t at, std::string_view key, std::string_view value, uint64_t generation) {
    Write(at, key, value, generation);
    Link(key, at, generation);
  }

  // As the reader sees it; a test may put other memories in place.
  const fabric::RemoteMemory& control() const override { return *seen_control; }
  const fabric::RemoteMemory* table(uint64_t id) const override {
    return id == kTableId ? seen_table : nullptr;
  }
  const fabric::RemoteMemory* segment(uint32_t id) const override {
    return id == kSegmentId ? seen_segment : nullptr;
  }
  const fabric::RemoteMemory* seen_control = &control_memory_;
  const fabric::RemoteMemory* seen_table = &table_memory_;
  const fabric::RemoteMemory* seen_segment = &segment_memory_;

 private:
  static fabric::ShmSegment Make(uint64_t bytes) {
    Result<fabric::ShmSegment> made = fabric::ShmSegment::CreatePages(bytes, false);
    EMS_CHECK(made.ok(), "{}", ToString(made.status()));
    return *std::move(made);
  }
  static uint64_t TableBytes(std::string_view value) {
    const uint64_t pieces = PieceCount(value.size());
    return pieces > 1 ? pieces * sizeof(uint64_t) : 0;
  }
  static uint64_t PayloadOffset(std::string_view key, std::string_view value) {
    return RoundUp(shm::kObjectHeaderBytes + TableBytes(value) + key.size(), 64);
  }
  // The entry with this word, or nullptr.
  shm::IndexEntry* Find(Hash128 hash, uint64_t word) {
    const shm::IndexPlace place = shm::PlaceOf(hash, buckets_);
    auto* all = reinterpret_cast<shm::IndexBucket*>(table_.bytes().data());
    for (const uint64_t bucket : {place.first, place.second}) {
      for (shm::IndexEntry& entry : all[place.shard * buckets_ + bucket].entries) {
        if (entry.generation_tag == word) return &entry;
      }
    }
    return nullptr;
  }

  fabric::ShmSegment control_, table_, segment_;
  uint64_t buckets_;
  PlainMemory control_memory_, table_memory_, segment_memory_;
};

}  // namespace ems::testing
