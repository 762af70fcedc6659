#include "common/checksum.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace ems {

static_assert(std::endian::native == std::endian::little, "piece tables are hashed as they lie");

void HashPieces(ConstBytes bytes, std::span<uint64_t> sums) {
  const uint64_t count = PieceCount(bytes.size());
  EMS_CHECK(count <= sums.size(), "{} pieces into {}", count, sums.size());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * kPieceBytes;
    sums[i] = Hash64(bytes.subspan(at, std::min<uint64_t>(kPieceBytes, bytes.size() - at)));
  }
}

uint64_t CombinePieces(std::span<const uint64_t> pieces) {
  EMS_CHECK(!pieces.empty());
  return pieces.size() == 1 ? pieces[0] : Hash64(std::as_bytes(pieces));
}

uint64_t Checksum(ConstBytes payload) {
  if (payload.size() <= kPieceBytes) return Hash64(payload);
  Hash64Stream combined;
  for (size_t at = 0; at < payload.size(); at += kPieceBytes) {
    const uint64_t sum =
        Hash64(payload.subspan(at, std::min<size_t>(kPieceBytes, payload.size() - at)));
    combined.Update(std::as_bytes(std::span(&sum, 1)));
  }
  return combined.Digest();
}

std::optional<uint64_t> RangeChecksum(ConstBytes payload, std::span<const uint64_t> sums,
                                      uint64_t offset, uint64_t length) {
  EMS_CHECK(offset <= payload.size() && length <= payload.size() - offset);
  if (length == 0) return Checksum({});
  Hash64Stream combined;
  uint64_t count = 0;
  uint64_t sum = 0;
  const uint64_t end = offset + length;
  for (uint64_t at = offset; at < end; ++count) {
    const uint64_t piece = at / kPieceBytes;
    const uint64_t piece_at = piece * kPieceBytes;
    const ConstBytes whole =
        payload.subspan(piece_at, std::min<uint64_t>(kPieceBytes, payload.size() - piece_at));
    const uint64_t stop = std::min<uint64_t>(end, piece_at + whole.size());
    if (count == 1) combined.Update(std::as_bytes(std::span(&sum, 1)));
    sum = sums[piece];
    if (stop - at != whole.size()) {
      if (Hash64(whole) != sum) return std::nullopt;
      sum = Hash64(payload.subspan(at, stop - at));
    }
    if (count > 0) combined.Update(std::as_bytes(std::span(&sum, 1)));
    at = stop;
  }
  return count == 1 ? sum : combined.Digest();
}

PieceHasher::PieceHasher() = default;

void PieceHasher::Start(std::span<uint64_t> table, uint64_t first_piece_bytes) {
  EMS_CHECK(first_piece_bytes > 0 && first_piece_bytes <= kPieceBytes);
  table_ = table;
  piece_room_ = first_piece_bytes;
  piece_filled_ = 0;
  piece_count_ = 0;
}

void PieceHasher::EndPiece(uint64_t digest) {
  if (!table_.empty()) {
    EMS_CHECK(piece_count_ < table_.size());
    table_[piece_count_] = digest;
  }
  if (piece_count_ == 0) {
    single_ = digest;
  } else {
    if (piece_count_ == 1) {
      combined_.Reset();
      combined_.Update(std::as_bytes(std::span(&single_, 1)));
    }
    combined_.Update(std::as_bytes(std::span(&digest, 1)));
  }
  ++piece_count_;
  piece_room_ = kPieceBytes;
  piece_filled_ = 0;
}

void PieceHasher::Update(ConstBytes bytes) {
  while (!bytes.empty()) {
    const ConstBytes part = bytes.first(std::min<uint64_t>(bytes.size(), piece_room_));
    bytes = bytes.subspan(part.size());
    piece_room_ -= part.size();
    if (piece_room_ == 0 && piece_filled_ == 0) {  // a whole piece in one part: the fast way
      EndPiece(Hash64(part));
      continue;
    }
    if (piece_filled_ == 0) stream_.Reset();
    stream_.Update(part);
    piece_filled_ += part.size();
    if (piece_room_ == 0) EndPiece(stream_.Digest());
  }
}

uint64_t PieceHasher::Finish() {
  if (piece_filled_ > 0) {
    EndPiece(stream_.Digest());
  } else if (piece_count_ == 0) {
    EndPiece(Hash64({}));
  }
  return piece_count_ == 1 ? single_ : combined_.Digest();
}

}  // namespace ems
