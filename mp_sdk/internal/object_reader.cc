#include "mp_sdk/internal/object_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <vector>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/object_key.h"

namespace ems::internal {
namespace {

using fabric::RemoteMemory;
using shm::ControlPage;
using shm::IndexBucket;
using shm::IndexEntry;
using shm::ObjectHeader;

// So much is copied and then hashed from the CPU's cache: whole pieces, which hash fastest.
constexpr uint64_t kCopyStepBytes = kPieceBytes;
constexpr uint64_t kScratchBytes = 4 * kKiB;
constexpr uint64_t kLineBytes = 64;
static_assert(shm::kObjectHeaderBytes == 2 * kLineBytes);
// A value that is replaced while its buckets are looked through may stand behind the reader with
// its new entry before the old one, further on, goes. A second look finds it.
constexpr int kScans = 2;

uint64_t ShardAt(uint32_t shard) {
  return offsetof(ControlPage, shards) + shard * sizeof(std::atomic<uint64_t>);
}

bool TagFits(uint64_t generation_tag, Hash128 hash) {
  return generation_tag != 0 && (generation_tag & 0xff) == (hash.lo & 0xff);
}

// Brings a line of the peer's memory into the cache. Who writes it meanwhile does no harm: what is
// loaded is thrown away.
__attribute__((no_sanitize("thread"))) void LoadLine(const void* at) {
  (void)*static_cast<const volatile std::byte*>(at);
}

bool Inside(uint64_t at, uint64_t bytes, uint64_t size) { return at <= size && bytes <= size - at; }

// The caller's room, piece by piece.
class Cursor final {
 public:
  explicit Cursor(std::span<const MutableBytes> parts) : parts_(parts) {}
  // The next contiguous room, `most` bytes at most; there must be some.
  MutableBytes Take(uint64_t most) {
    while (offset_ == parts_[part_].size()) ++part_, offset_ = 0;
    const MutableBytes rest = parts_[part_].subspan(offset_);
    const MutableBytes taken = rest.first(std::min<uint64_t>(rest.size(), most));
    offset_ += taken.size();
    return taken;
  }
  void Skip(uint64_t bytes) {
    while (bytes > 0) bytes -= Take(bytes).size();
  }

 private:
  std::span<const MutableBytes> parts_;
  size_t part_ = 0;
  size_t offset_ = 0;
};

// Hashers keep their state on the heap; one a thread, so that no read allocates.
PieceHasher& ThreadHasher() {
  static thread_local PieceHasher hasher;
  return hasher;
}

// Copies [at, at + bytes) and, if `hasher`, hashes what has been copied.
void CopyPart(const RemoteMemory& memory, uint64_t at, uint64_t bytes, Cursor* cursor,
              PieceHasher* hasher) {
  const std::byte* const address = memory.address();
  while (bytes > 0) {
    const MutableBytes room = cursor->Take(
        address != nullptr || hasher == nullptr ? bytes : std::min(bytes, kCopyStepBytes));
    if (address != nullptr) {
      CopyValue(room, address + at, hasher);
    } else {
      memory.Read(at, room);
      if (hasher != nullptr) hasher->Update(room);
    }
    at += room.size();
    bytes -= room.size();
  }
}

// Hashes [at, at + bytes) of a piece that the caller wants no copy of.
void HashPart(const RemoteMemory& memory, uint64_t at, uint64_t bytes, PieceHasher* hasher) {
  std::array<std::byte, kScratchBytes> scratch;
  while (bytes > 0) {
    const MutableBytes part = std::span(scratch).first(std::min(bytes, kScratchBytes));
    memory.Read(at, part);
    hasher->Update(part);
    at += part.size();
    bytes -= part.size();
  }
}

// The same in shares of whole pieces, by several threads. No share of it leaves the memory before
// all are done.
bool CopyShared(const FoundObject& found, std::span<const MutableBytes> into, bool verify,
                CopyCrew* crew) {
  static_assert(CopyCrew::kShareBytes % kPieceBytes == 0);
  static thread_local std::vector<uint64_t> kept_sums;  // so that no read allocates
  std::vector<uint64_t>& sums = kept_sums;
  sums.resize(PieceCount(found.payload_bytes));
  const auto copy = [&](size_t i) {
    const uint64_t at = i * CopyCrew::kShareBytes;
    const uint64_t bytes = std::min(CopyCrew::kShareBytes, found.payload_bytes - at);
    Cursor cursor(into);
    cursor.Skip(at);
    PieceHasher& hasher = ThreadHasher();
    hasher.Start(std::span(sums).subspan(at / kPieceBytes, PieceCount(bytes)));
    CopyPart(*found.segment, found.payload_at + at, bytes, &cursor, verify ? &hasher : nullptr);
    if (verify) (void)hasher.Finish();
  };
  const uint64_t shares = (found.payload_bytes + CopyCrew::kShareBytes - 1) / CopyCrew::kShareBytes;
  crew->Run(shares, copy);
  return !verify || CombinePieces(sums) == found.checksum;
}

bool CopyWhole(const FoundObject& found, std::span<const MutableBytes> into, bool verify,
               CopyCrew* crew) {
  if (crew != nullptr && crew->Wants(found.payload_bytes) && found.segment->address() != nullptr)
    return CopyShared(found, into, verify, crew);
  Cursor cursor(into);
  if (!verify) {
    CopyPart(*found.segment, found.payload_at, found.payload_bytes, &cursor, nullptr);
    return true;
  }
  PieceHasher& hasher = ThreadHasher();
  hasher.Start({});
  CopyPart(*found.segment, found.payload_at, found.payload_bytes, &cursor, &hasher);
  return hasher.Finish() == found.checksum;
}

// A range verifies by the checksums of the pieces that it touches: the first and the last are
// hashed whole, though only a part of them is copied.
bool CopyRange(const FoundObject& found, uint64_t offset, std::span<const MutableBytes> into,
               uint64_t length, bool verify) {
  Cursor cursor(into);
  if (!verify || length == 0) {
    CopyPart(*found.segment, found.payload_at + offset, length, &cursor, nullptr);
    return true;
  }
  PieceHasher& hasher = ThreadHasher();
  const uint64_t end = offset + length;
  bool matches = true;
  for (uint64_t piece = offset / kPieceBytes; piece * kPieceBytes < end; ++piece) {
    const uint64_t piece_at = piece * kPieceBytes;
    const uint64_t piece_end = std::min(piece_at + kPieceBytes, found.payload_bytes);
    const uint64_t from = std::max(piece_at, offset);
    const uint64_t to = std::min(piece_end, end);
    hasher.Start({});
    HashPart(*found.segment, found.payload_at + piece_at, from - piece_at, &hasher);
    CopyPart(*found.segment, found.payload_at + from, to - from, &cursor, &hasher);
    HashPart(*found.segment, found.payload_at + to, piece_end - to, &hasher);
    uint64_t expected = found.checksum;
    if (found.table_at != 0) {
      found.segment->Read(found.table_at + piece * sizeof(expected),
                          std::as_writable_bytes(std::span(&expected, 1)));
    }
    matches = matches && hasher.Finish() == expected;
  }
  return matches;
}

}  // namespace

bool ObjectReader::IsCurrent(TimePoint now) const {
  if (control_.Load(offsetof(ControlPage, view)) < view_) return false;
  const auto until = static_cast<int64_t>(control_.Load(offsetof(ControlPage, readable_until_ns)));
  if (now.time_since_epoch().count() > until) return false;
  static_assert(offsetof(ControlPage, closed) % sizeof(uint64_t) == 0);
  return static_cast<uint32_t>(control_.Load(offsetof(ControlPage, closed))) == 0;
}

bool ObjectReader::StillThere(const FoundObject& found) const {
  // Partner: the server empties the entry (release) before it frees the bytes. Nothing for x86
  // to do, but a real barrier on ARM: the copy's loads come before the entry's.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (found.table->LoadWord(found.entry_at) != found.entry_word) return false;
  if (control_.Load(found.shard_at) != found.shard_word) return false;
  return found.segment->LoadWord(found.header_at + offsetof(ObjectHeader, state_generation)) ==
         shm::StateWord(found.entry_word >> 8, shm::ChunkState::kValid);
}

ObjectReader::Buckets ObjectReader::BucketsOf(uint64_t table_bytes, Hash128 hash) {
  const uint64_t buckets = table_bytes / shm::TableBytesOf(1);
  // Powers of two only; std::has_single_bit is a call where the CPU may be an old one.
  if ((buckets & (buckets - 1)) != 0 || buckets < 2 || buckets > shm::kBucketsPerShardMax) {
    return {};
  }
  const shm::IndexPlace place = shm::PlaceOf(hash, buckets);
  const uint64_t shard_at = place.shard * buckets;
  return {true, (shard_at + place.first) * sizeof(IndexBucket),
          (shard_at + place.second) * sizeof(IndexBucket)};
}

ReadOutcome ObjectReader::Find(std::string_view key, Hash128 hash, FoundObject* found) const {
  ReadOutcome outcome = ReadOutcome::kChanged;
  for (int i = 0; i < kAttempts && outcome == ReadOutcome::kChanged; ++i) {
    outcome = FindOnce(key, hash, found);
  }
  return outcome;
}

ReadOutcome ObjectReader::FindOnce(std::string_view key, Hash128 hash, FoundObject* found) const {
  found->shard_at = ShardAt(shm::ShardOf(hash));
  found->shard_word = control_.Load(found->shard_at);
  found->needed = shm::TableOf(found->shard_word);
  if (found->needed == 0) return ReadOutcome::kNotConclusive;
  const RemoteMemory* const table = pool_->table(found->needed);
  if (table == nullptr) return ReadOutcome::kNeedTable;
  const Buckets buckets = BucketsOf(table->size_bytes(), hash);
  if (!buckets.valid) return ReadOutcome::kMismatch;
  found->table = table;
  for (int scan = 0; scan < kScans; ++scan) {
    for (const uint64_t bucket_at : {buckets.first, buckets.second}) {
      const ReadOutcome outcome = FindInBucket(key, hash, bucket_at, found);
      if (outcome != ReadOutcome::kMiss) return outcome;
    }
  }
  // No entry. That proves something if the index held every object all the while.
  if (control_.Load(found->shard_at) != found->shard_word) return ReadOutcome::kChanged;
  const bool conclusive =
      !shm::IsIncomplete(found->shard_word) && control_.Load(offsetof(ControlPage, view)) == view_;
  return conclusive ? ReadOutcome::kMiss : ReadOutcome::kNotConclusive;
}

// kMiss: none of this bucket's entries is the key's.
ReadOutcome ObjectReader::FindInBucket(std::string_view key, Hash128 hash, uint64_t bucket_at,
                                       FoundObject* found) const {
  const Words entries(*found->table);
  for (uint64_t i = 0; i < shm::kEntriesPerBucket; ++i) {
    found->entry_at = bucket_at + i * sizeof(IndexEntry);
    found->entry_word = entries.Load(found->entry_at);
    if (!TagFits(found->entry_word, hash)) continue;
    const uint64_t location = entries.Load(found->entry_at + offsetof(IndexEntry, location));
    if (entries.Load(found->entry_at) != found->entry_word) return ReadOutcome::kChanged;
    switch (Examine(key, hash, location, found)) {
      case Candidate::kThisKey:
        return ReadOutcome::kHit;
      case Candidate::kOtherKey:
        break;
      case Candidate::kNeedSegment:
        found->needed = shm::SegmentOf(location);
        return ReadOutcome::kNeedSegment;
      case Candidate::kChanged:
        return ReadOutcome::kChanged;
      case Candidate::kDamaged:
        return ReadOutcome::kMismatch;
    }
  }
  return ReadOutcome::kMiss;
}

// What the header at `location` is. Any verdict but kChanged was checked against the entry after
// the last byte was looked at.
ObjectReader::Candidate ObjectReader::Examine(std::string_view key, Hash128 hash, uint64_t location,
                                              FoundObject* found) const {
  found->segment = pool_->segment(shm::SegmentOf(location));
  if (found->segment == nullptr) return Candidate::kNeedSegment;
  found->header_at = shm::OffsetOf(location);
  if (!Inside(found->header_at, shm::kObjectHeaderBytes, found->segment->size_bytes())) {
    return Candidate::kDamaged;
  }
  ObjectHeader header;
  found->segment->Read(found->header_at,
                       {reinterpret_cast<std::byte*>(&header), shm::kObjectHeaderBytes});
  Candidate verdict = Candidate::kDamaged;
  if (CheckHeader(header)) {
    if (header.key_hash_lo != hash.lo || header.key_hash_hi != hash.hi ||
        header.key_bytes != key.size()) {
      verdict = Candidate::kOtherKey;
    } else if (TakeGeometry(header, found)) {
      std::array<std::byte, kKeyBytesMax> stored;
      const MutableBytes bytes = std::span(stored).first(key.size());
      found->segment->Read(found->header_at + header.key_offset, bytes);
      verdict = AsText(bytes) == key ? Candidate::kThisKey : Candidate::kOtherKey;
    }
  }
  return StillThere(*found) ? verdict : Candidate::kChanged;
}

bool ObjectReader::CheckHeader(const ObjectHeader& header) const {
  return header.magic == shm::kObjectMagic && header.version == shm::kObjectHeaderVersion &&
         header.header_bytes == shm::kObjectHeaderBytes &&
         header.namespace_id == identity_->ns.id.value() &&
         header.namespace_generation == identity_->ns.generation &&
         header.boot_id == identity_->boot_id && header.ttl_s == 0 &&
         header.header_checksum == shm::HeaderChecksum(header);
}

// Where the object's parts lie; false when not all of them lie inside the segment.
bool ObjectReader::TakeGeometry(const ObjectHeader& header, FoundObject* found) {
  // No sum can overflow: the header lies inside the segment, and so do the parts before they count.
  const uint64_t room = found->segment->size_bytes() - found->header_at;
  const uint64_t pieces = PieceCount(header.payload_bytes);
  const uint64_t table_bytes = pieces > 1 ? pieces * sizeof(uint64_t) : 0;
  const bool table_fits = pieces == 1 ? header.table_offset == 0
                                      : header.table_offset >= shm::kObjectHeaderBytes &&
                                            header.piece_bytes_log2 == 16 &&
                                            Inside(header.table_offset, table_bytes, room);
  if (header.key_bytes > kKeyBytesMax || !Inside(header.key_offset, header.key_bytes, room) ||
      !Inside(header.payload_offset, header.payload_bytes, room) || !table_fits) {
    return false;
  }
  found->payload_at = found->header_at + header.payload_offset;
  found->payload_bytes = header.payload_bytes;
  found->table_at = pieces > 1 ? found->header_at + header.table_offset : 0;
  found->checksum = header.checksum;
  return true;
}

ReadOutcome ObjectReader::Read(std::string_view key, Hash128 hash, const CopyRequest& request,
                               FoundObject* found) const {
  for (int i = 0; i < kAttempts; ++i) {
    const ReadOutcome outcome = FindOnce(key, hash, found);
    if (outcome == ReadOutcome::kChanged) continue;
    if (outcome != ReadOutcome::kHit) return outcome;
    const uint64_t room = request.into.size_bytes();
    if (request.ranged) {
      const bool other = request.whole_bytes != 0 && request.whole_bytes != found->payload_bytes;
      if (other || !Inside(request.offset, room, found->payload_bytes))
        return ReadOutcome::kOutOfRange;
    } else if (request.grow == nullptr && room < found->payload_bytes) {
      return ReadOutcome::kTooSmall;
    }
    const bool matches = Copy(*found, request);
    if (StillThere(*found)) return matches ? ReadOutcome::kHit : ReadOutcome::kMismatch;
  }
  return ReadOutcome::kChanged;
}

bool ObjectReader::Copy(const FoundObject& found, const CopyRequest& request) {
  if (request.ranged) {
    return CopyRange(found, request.offset, request.into.parts(), request.into.size_bytes(),
                     request.verify);
  }
  if (request.grow == nullptr)
    return CopyWhole(found, request.into.parts(), request.verify, request.crew);
  request.grow->resize(found.payload_bytes);
  const MutableBytes grown = std::as_writable_bytes(std::span(*request.grow));
  return CopyWhole(found, std::span(&grown, 1), request.verify, request.crew);
}

void ObjectReader::LocateBuckets(Hash128 hash, Hint* hint) const {
  const uint64_t word = control_.Load(ShardAt(shm::ShardOf(hash)));
  const RemoteMemory* const table = pool_->table(shm::TableOf(word));
  if (table == nullptr || table->address() == nullptr) return;
  const Buckets buckets = BucketsOf(table->size_bytes(), hash);
  if (!buckets.valid) return;
  hint->first = reinterpret_cast<const IndexBucket*>(table->address() + buckets.first);
  hint->second = reinterpret_cast<const IndexBucket*>(table->address() + buckets.second);
}

void ObjectReader::LoadBuckets(const Hint& hint) {
  if (hint.first == nullptr) return;
  LoadLine(hint.first);
  LoadLine(hint.second);
}

// The header that the first entry with a fitting tag points to: the right one, nearly always.
void ObjectReader::LocateHeader(Hash128 hash, Hint* hint) const {
  if (hint->first == nullptr) return;
  for (const IndexBucket* bucket : {hint->first, hint->second}) {
    for (const IndexEntry& entry : bucket->entries) {
      if (!TagFits(entry.generation_tag.load(std::memory_order_relaxed), hash)) continue;
      const uint64_t location = entry.location.load(std::memory_order_relaxed);
      const RemoteMemory* const segment = pool_->segment(shm::SegmentOf(location));
      if (segment == nullptr || segment->address() == nullptr) return;
      const uint64_t offset = shm::OffsetOf(location);
      if (!Inside(offset, shm::kObjectHeaderBytes, segment->size_bytes())) return;
      hint->header = reinterpret_cast<const ObjectHeader*>(segment->address() + offset);
      hint->room = segment->size_bytes() - offset;
      return;
    }
  }
}

void ObjectReader::LoadHeader(const Hint& hint) {
  if (hint.header == nullptr) return;
  const auto* const header = reinterpret_cast<const std::byte*>(hint.header);
  LoadLine(header);
  LoadLine(header + kLineBytes);
  if (hint.room > shm::kObjectHeaderBytes + kLineBytes)
    LoadLine(header + shm::kObjectHeaderBytes);  // the key, mostly
}

void ObjectReader::PrefetchKey(const Hint& hint) {
  if (hint.header == nullptr) return;
  const auto* const header = reinterpret_cast<const std::byte*>(hint.header);
  uint32_t key_offset = 0;
  std::memcpy(&key_offset, header + offsetof(ObjectHeader, key_offset), sizeof(key_offset));
  if (key_offset > shm::kObjectHeaderBytes && key_offset < hint.room)
    __builtin_prefetch(header + key_offset);
}

}  // namespace ems::internal
