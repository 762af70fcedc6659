#pragma once
// The tensors of a model file, from its header: their names, types, shapes and bytes. One form for
// all formats, so that cutting into blocks and slicing for tensor parallelism depend on none of
// them.
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace ems::model {

// Bounds of what a header may ask for; real models stay far below.
inline constexpr uint64_t kTensorsMax = 1'000'000;  // in one file, or in one index
inline constexpr uint64_t kTensorDimsMax = 64;      // PyTorch's limit; ggml has 4
inline constexpr uint64_t kTensorNameBytesMax = 4096;

// Element types of safetensors and of GGUF. Those with a Q in their name, MXFP4 and NVFP4 are
// quantised: a block of elements shares its scales and is never divided.
enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kF8E4M3,
  kF8E4M3Fnuz,
  kF8E5M2,
  kF8E5M2Fnuz,
  kF8E8M0,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kQ1_0,
  kQ2_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ8K,
  kIQ1S,
  kIQ1M,
  kIQ2XXS,
  kIQ2XS,
  kIQ2S,
  kIQ3XXS,
  kIQ3S,
  kIQ4NL,
  kIQ4XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
};

struct DTypeTraits {
  DType dtype;
  std::string_view name;    // as safetensors or ggml spell it: "BF16", "Q4_K"
  uint32_t block_elements;  // 1, or as many as are stored together
  uint32_t block_bytes;     // of such a block
};

// Every type, in the order of the enum. Static.
std::span<const DTypeTraits> AllDTypes();
const DTypeTraits& TraitsOf(DType dtype);
std::optional<DType> DTypeByName(std::string_view name);

// Bytes of a tensor without padding. A scalar has an empty shape. Cost: O(dimensions).
// Errors: kInvalidArgument  more than 2^64 - 1 elements or bytes, or not a whole number of blocks
Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape);

// "[4096, 128]", for messages.
std::string ShapeText(std::span<const uint64_t> shape);

struct TensorInfo {
  std::string name;  // UTF-8
  DType dtype = DType::kF32;
  std::vector<uint64_t>
      shape;            // outermost dimension first, row-major, whatever the format's own order
  uint64_t offset = 0;  // of the first byte, from the file's start
  uint64_t bytes = 0;   // TensorBytes(dtype, shape)
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

struct TensorTable {
  std::vector<TensorInfo> tensors;  // by offset; none overlap, all are inside the file
  uint64_t data_begin = 0;          // from the file's start; all before it is header
  std::map<std::string, std::string>
      metadata;  // values as text; a long array as "[151936 x string]"
  friend bool operator==(const TensorTable&, const TensorTable&) = default;
};

// A parser's answer to the first bytes of a file.
struct HeaderParse {
  // 0: `table` is filled. Else the parser needs this many first bytes of the file, more than it was
  // given and never more than the file has; parse again from the start with them.
  uint64_t bytes_needed = 0;
  TensorTable table;
  bool done() const { return bytes_needed == 0; }
};

// What every table must keep: names unique, tensors inside [data_begin, file_bytes), none
// overlapping. Sorts by offset. Errors: kInvalidArgument  naming the tensor and the numbers
Status SortAndCheck(uint64_t file_bytes, TensorTable* table);

// Whether `text` is valid UTF-8 (no surrogates, no overlong forms).
bool IsUtf8(std::string_view text);

}  // namespace ems::model
