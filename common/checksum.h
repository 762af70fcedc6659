#pragma once
// The checksum of a payload, made of pieces so that a range of it verifies too.
//
// A payload is cut into pieces of 64 KiB; each piece has its XXH3-64. The checksum of a payload of
// one piece is that piece's; of more pieces, the XXH3-64 of the little-endian array of piece
// checksums. So one pass over the bytes gives both the table and the checksum, and the checksum of
// a range that starts at a piece boundary follows from the table.
#include <cstdint>
#include <optional>
#include <span>

#include "common/bytes.h"
#include "common/hash.h"

namespace ems {

inline constexpr uint64_t kPieceBytes = 64 * kKiB;

// How many pieces `payload_bytes` are cut into: 1 for an empty payload, too.
constexpr uint64_t PieceCount(uint64_t payload_bytes) {
  return payload_bytes <= kPieceBytes ? 1 : (payload_bytes + kPieceBytes - 1) / kPieceBytes;
}

// The checksums of the pieces of `bytes` into `sums`, which must hold PieceCount of them.
void HashPieces(ConstBytes bytes, std::span<uint64_t> sums);

// The checksum of a payload from the checksums of its pieces, in order; at least one.
uint64_t CombinePieces(std::span<const uint64_t> pieces);

// Checksum of bytes that are all there. Cost: one pass; no allocation.
uint64_t Checksum(ConstBytes payload);

// The checksum of `length` bytes from `offset` of a payload, cut at the payload's piece boundaries:
// what a PieceHasher gives that is started with the rest of the first piece. From `sums`, the
// checksums of its pieces, where whole pieces are covered; a piece at an edge is verified and
// checksummed again. Nothing: an edge piece does not match its checksum. The range must lie within
// the payload. Cost: at most two pieces; no allocation.
std::optional<uint64_t> RangeChecksum(ConstBytes payload, std::span<const uint64_t> sums,
                                      uint64_t offset, uint64_t length);

// Checksums bytes as they arrive, in parts of any size, while they are still in the CPU's cache.
// `first_piece_bytes` is the length of the first piece when the bytes start inside one (a range
// read); the others are 64 KiB. Threading: one thread. Cost: no allocation after construction.
class PieceHasher final {
 public:
  PieceHasher();

  // Starts a payload. If `table` is not empty it receives the piece checksums; it must hold all of
  // them and live until Finish.
  void Start(std::span<uint64_t> table, uint64_t first_piece_bytes = kPieceBytes);
  void Update(ConstBytes bytes);
  // The checksum of all bytes since Start. Call once.
  uint64_t Finish();

 private:
  void EndPiece(uint64_t digest);

  std::span<uint64_t> table_;
  uint64_t piece_room_ = kPieceBytes;  // bytes that still belong to the current piece
  uint64_t piece_filled_ = 0;          // bytes of the current piece already in stream_
  uint64_t piece_count_ = 0;
  uint64_t single_ = 0;  // checksum of the only piece so far
  Hash64Stream stream_;
  Hash64Stream combined_;  // over the piece checksums
};

}  // namespace ems
