#include "model_files/format/block_cutter.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/hash.h"

namespace ems::model {
namespace {

// Both are part of the format of stored models: another value routes or cuts every model
// differently.
constexpr std::string_view kTensorRoute = "ems-model-tensor";
constexpr std::string_view kFileRoute = "ems-model-file";
constexpr uint64_t kAnchorSeed = 0x656d736d6f64656c;
constexpr uint64_t kAnchorEvery = 4;

void AppendNumber(uint64_t value, std::string* text) {
  for (int shift = 0; shift < 64; shift += 8) text->push_back(static_cast<char>(value >> shift));
}

// Tag and name are told apart by the tag's fixed length, name and number by the number's.
std::string Route(std::string_view tag, std::string_view name, uint64_t piece) {
  std::string text(tag);
  text.append(name);
  AppendNumber(piece, &text);
  const Hash128 hash = HashTo128(AsBytes(text));
  std::string digest;
  AppendNumber(hash.lo, &digest);
  AppendNumber(hash.hi, &digest);
  return ToHex(AsBytes(digest));
}

bool IsAnchor(std::string_view name) {
  return Hash64(AsBytes(name), kAnchorSeed) % kAnchorEvery == 0;
}

// Bytes of a file that rules 1 to 5 treat as one: a header, a tensor with the padding behind it, an
// opaque file.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class Cutter {
 public:
  explicit Cutter(uint64_t block_bytes) : block_bytes_(block_bytes) {}

  Status Cut(uint32_t number, const CutFile& file) {
    file_ = number;
    covered_ = 0;
    if (file.table == nullptr) return Pieces({0, file.bytes}, kFileRoute, file.path);
    EMS_RETURN_IF_ERROR(CheckTable(file));
    const std::vector<TensorInfo>& tensors = file.table->tensors;
    const uint64_t begin = tensors.empty() ? file.bytes : tensors.front().offset;
    EMS_RETURN_IF_ERROR(Pieces({0, begin}, kFileRoute, file.path));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const uint64_t end = i + 1 < tensors.size() ? tensors[i + 1].offset : file.bytes;
      EMS_CHECK(tensors[i].offset <= end, "tensors of {} are not in order", file.path);
      const Extent extent{tensors[i].offset, end - tensors[i].offset};
      // A tensor without a byte has no say in where blocks end.
      if (extent.bytes > 0) EMS_RETURN_IF_ERROR(Tensor(tensors[i].name, extent));
    }
    EMS_RETURN_IF_ERROR(CloseGathered());
    EMS_CHECK(covered_ == file.bytes, "blocks of {} bytes for {} of {}", covered_, file.path,
              file.bytes);
    return OkStatus();
  }

  std::vector<BlockSpan> Take() { return std::move(blocks_); }

 private:
  static Status CheckTable(const CutFile& file) {
    uint64_t end = file.table->data_begin;
    for (const TensorInfo& tensor : file.table->tensors) {
      if (tensor.offset < end || tensor.offset > file.bytes ||
          tensor.bytes > file.bytes - tensor.offset) {
        return Error(StatusCode::kInvalidArgument,
                     "{}: tensor '{}' of {} bytes at byte {} does not fit between byte {} and the "
                     "file's end at {}",
                     file.path, Printable(tensor.name), tensor.bytes, tensor.offset, end,
                     file.bytes);
      }
      end = tensor.offset + tensor.bytes;
    }
    if (end > file.bytes) {
      return Error(StatusCode::kInvalidArgument, "{}: a header of {} bytes in a file of {}",
                   file.path, end, file.bytes);
    }
    return OkStatus();
  }

  Status Tensor(std::string_view name, const Extent& extent) {
    if (extent.bytes >= kBlockBytesMin) {
      EMS_RETURN_IF_ERROR(CloseGathered());
      return Pieces(extent, kTensorRoute, name);
    }
    const uint64_t together = gathered_.bytes + extent.bytes;
    const bool full = together > std::min(kGatheredBytesMax, block_bytes_);
    if (full || (gathered_.bytes >= kBlockBytesMin && IsAnchor(name)))
      EMS_RETURN_IF_ERROR(CloseGathered());
    if (gathered_.bytes == 0) {
      gathered_.offset = extent.offset;
      first_name_ = name;
    }
    gathered_.bytes += extent.bytes;
    return OkStatus();
  }

  Status CloseGathered() {
    const Extent gathered = std::exchange(gathered_, {});
    return Pieces(gathered, kTensorRoute, first_name_);
  }

  Status Pieces(const Extent& extent, std::string_view tag, std::string_view name) {
    const uint64_t pieces =
        extent.bytes / block_bytes_ + (extent.bytes % block_bytes_ == 0 ? 0 : 1);
    if (pieces > kBlocksMax - blocks_.size()) {
      return Error(StatusCode::kResourceExhausted,
                   "more than {} blocks of {} bytes; '{}' alone has {} bytes. Choose larger blocks",
                   kBlocksMax, block_bytes_, Printable(name), extent.bytes);
    }
    EMS_CHECK(extent.offset == covered_ || extent.bytes == 0, "blocks with a gap at byte {}",
              covered_);
    covered_ += extent.bytes;
    for (uint64_t piece = 0; piece < pieces; ++piece) {
      const uint64_t begin = piece * block_bytes_;
      blocks_.push_back({.file = file_,
                         .offset = extent.offset + begin,
                         .bytes = std::min(block_bytes_, extent.bytes - begin),
                         .route = Route(tag, name, piece)});
    }
    return OkStatus();
  }

  const uint64_t block_bytes_;
  uint32_t file_ = 0;
  uint64_t covered_ = 0;         // of it, by blocks
  Extent gathered_;              // small tensors whose block is open; no bytes: none
  std::string_view first_name_;  // of the first of them
  std::vector<BlockSpan> blocks_;
};

}  // namespace

Result<std::vector<BlockSpan>> CutIntoBlocks(std::span<const CutFile> files, uint64_t block_bytes) {
  if (block_bytes < kBlockBytesMin || block_bytes > kBlockBytesMax) {
    return Error(StatusCode::kInvalidArgument, "blocks of {} bytes; {} to {}", block_bytes,
                 kBlockBytesMin, kBlockBytesMax);
  }
  if (files.size() > UINT32_MAX)
    return Error(StatusCode::kInvalidArgument, "{} files", files.size());
  Cutter cutter(block_bytes);
  for (size_t i = 0; i < files.size(); ++i) {
    EMS_RETURN_IF_ERROR(cutter.Cut(static_cast<uint32_t>(i), files[i]));
  }
  return cutter.Take();
}

}  // namespace ems::model
