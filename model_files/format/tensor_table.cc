#include "model_files/format/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "common/bytes.h"
#include "common/check.h"

namespace ems::model {
namespace {

// safetensors' sub-byte types are blocks as well: two F4 in a byte, four F6 in three.
// Block sizes of ggml's types: struct sizes in ggml-common.h. (The Python package's table says 40
// for Q8_1, which is its older layout; no file stores that type.)
constexpr std::array kTraits = {
    DTypeTraits{DType::kBool, "BOOL", 1, 1},
    DTypeTraits{DType::kF4, "F4", 2, 1},
    DTypeTraits{DType::kF6E2M3, "F6_E2M3", 4, 3},
    DTypeTraits{DType::kF6E3M2, "F6_E3M2", 4, 3},
    DTypeTraits{DType::kF8E4M3, "F8_E4M3", 1, 1},
    DTypeTraits{DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 1, 1},
    DTypeTraits{DType::kF8E5M2, "F8_E5M2", 1, 1},
    DTypeTraits{DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 1, 1},
    DTypeTraits{DType::kF8E8M0, "F8_E8M0", 1, 1},
    DTypeTraits{DType::kF16, "F16", 1, 2},
    DTypeTraits{DType::kBF16, "BF16", 1, 2},
    DTypeTraits{DType::kF32, "F32", 1, 4},
    DTypeTraits{DType::kF64, "F64", 1, 8},
    DTypeTraits{DType::kC64, "C64", 1, 8},
    DTypeTraits{DType::kI8, "I8", 1, 1},
    DTypeTraits{DType::kI16, "I16", 1, 2},
    DTypeTraits{DType::kI32, "I32", 1, 4},
    DTypeTraits{DType::kI64, "I64", 1, 8},
    DTypeTraits{DType::kU8, "U8", 1, 1},
    DTypeTraits{DType::kU16, "U16", 1, 2},
    DTypeTraits{DType::kU32, "U32", 1, 4},
    DTypeTraits{DType::kU64, "U64", 1, 8},
    DTypeTraits{DType::kQ1_0, "Q1_0", 128, 2 + 16},
    DTypeTraits{DType::kQ2_0, "Q2_0", 64, 2 + 16},
    DTypeTraits{DType::kQ4_0, "Q4_0", 32, 2 + 16},
    DTypeTraits{DType::kQ4_1, "Q4_1", 32, 2 + 2 + 16},
    DTypeTraits{DType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    DTypeTraits{DType::kQ5_1, "Q5_1", 32, 2 + 2 + 4 + 16},
    DTypeTraits{DType::kQ8_0, "Q8_0", 32, 2 + 32},
    DTypeTraits{DType::kQ8_1, "Q8_1", 32, 2 + 2 + 32},
    DTypeTraits{DType::kQ2K, "Q2_K", 256, 2 + 2 + 16 + 64},
    DTypeTraits{DType::kQ3K, "Q3_K", 256, 2 + 64 + 32 + 12},
    DTypeTraits{DType::kQ4K, "Q4_K", 256, 2 + 2 + 128 + 12},
    DTypeTraits{DType::kQ5K, "Q5_K", 256, 2 + 2 + 128 + 32 + 12},
    DTypeTraits{DType::kQ6K, "Q6_K", 256, 2 + 128 + 64 + 16},
    DTypeTraits{DType::kQ8K, "Q8_K", 256, 4 + 256 + 32},
    DTypeTraits{DType::kIQ1S, "IQ1_S", 256, 2 + 32 + 16},
    DTypeTraits{DType::kIQ1M, "IQ1_M", 256, 32 + 16 + 8},
    DTypeTraits{DType::kIQ2XXS, "IQ2_XXS", 256, 2 + 64},
    DTypeTraits{DType::kIQ2XS, "IQ2_XS", 256, 2 + 64 + 8},
    DTypeTraits{DType::kIQ2S, "IQ2_S", 256, 2 + 64 + 16},
    DTypeTraits{DType::kIQ3XXS, "IQ3_XXS", 256, 2 + 64 + 32},
    DTypeTraits{DType::kIQ3S, "IQ3_S", 256, 2 + 64 + 32 + 8 + 4},
    DTypeTraits{DType::kIQ4NL, "IQ4_NL", 32, 2 + 16},
    DTypeTraits{DType::kIQ4XS, "IQ4_XS", 256, 2 + 2 + 128 + 4},
    DTypeTraits{DType::kTQ1_0, "TQ1_0", 256, 2 + 4 * 13},
    DTypeTraits{DType::kTQ2_0, "TQ2_0", 256, 2 + 64},
    DTypeTraits{DType::kMXFP4, "MXFP4", 32, 1 + 16},
    DTypeTraits{DType::kNVFP4, "NVFP4", 64, 4 + 32},
};

constexpr bool InOrderOfTheEnum() {
  for (size_t i = 0; i < kTraits.size(); ++i) {
    if (static_cast<size_t>(kTraits[i].dtype) != i) return false;
  }
  return kTraits.back().dtype == DType::kNVFP4;
}
static_assert(InOrderOfTheEnum(), "TraitsOf indexes by the enum");

}  // namespace

std::span<const DTypeTraits> AllDTypes() { return kTraits; }

const DTypeTraits& TraitsOf(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  EMS_CHECK(index < kTraits.size());
  return kTraits[index];
}

std::optional<DType> DTypeByName(std::string_view name) {
  const auto found = std::ranges::find(kTraits, name, &DTypeTraits::name);
  return found == kTraits.end() ? std::nullopt : std::optional(found->dtype);
}

std::string ShapeText(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape) {
  const DTypeTraits& traits = TraitsOf(dtype);
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) {
      return Error(StatusCode::kInvalidArgument, "shape {} has more than 2^64 - 1 elements",
                   ShapeText(shape));
    }
  }
  if (elements % traits.block_elements != 0) {
    return Error(
        StatusCode::kInvalidArgument,
        "shape {} has {} elements, which is no multiple of {}: {} stores that many together",
        ShapeText(shape), elements, traits.block_elements, traits.name);
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / traits.block_elements, uint64_t{traits.block_bytes},
                             &bytes)) {
    return Error(StatusCode::kInvalidArgument, "shape {} of {} has more than 2^64 - 1 bytes",
                 ShapeText(shape), traits.name);
  }
  return bytes;
}

Status SortAndCheck(uint64_t file_bytes, TensorTable* table) {
  std::ranges::stable_sort(table->tensors, {}, [](const TensorInfo& tensor) {
    // A tensor without bytes may stand where another one begins; it goes first.
    return std::pair(tensor.offset, tensor.bytes);
  });
  std::unordered_set<std::string_view> names;
  names.reserve(table->tensors.size());
  const TensorInfo* before = nullptr;
  uint64_t end = table->data_begin;
  for (const TensorInfo& tensor : table->tensors) {
    if (!names.insert(tensor.name).second) {
      return Error(StatusCode::kInvalidArgument, "tensor '{}' is listed twice",
                   Printable(tensor.name));
    }
    if (tensor.offset > file_bytes || tensor.bytes > file_bytes - tensor.offset) {
      return Error(StatusCode::kInvalidArgument,
                   "tensor '{}' has {} bytes from byte {} on, but the file ends at byte {}",
                   Printable(tensor.name), tensor.bytes, tensor.offset, file_bytes);
    }
    if (tensor.offset < end) {
      return Error(StatusCode::kInvalidArgument,
                   "tensor '{}' begins at byte {}, inside {} that ends at byte {}",
                   Printable(tensor.name), tensor.offset,
                   before == nullptr ? "the header" : "tensor '" + Printable(before->name) + "'",
                   end);
    }
    before = &tensor;
    end = tensor.offset + tensor.bytes;
  }
  return OkStatus();
}

bool IsUtf8(std::string_view text) {
  // Ranges of the second byte: Unicode 15, table 3-7.
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t tail = lead < 0x80   ? 0
                        : lead < 0xC2 ? 9
                        : lead < 0xE0 ? 1
                        : lead < 0xF0 ? 2
                        : lead < 0xF5 ? 3
                                      : 9;
    if (tail == 9 || tail > text.size() - i - 1) return false;
    for (size_t k = 1; k <= tail; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      const uint8_t low = k > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
      const uint8_t high = k > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
      if (byte < low || byte > high) return false;
    }
    i += tail + 1;
  }
  return true;
}

}  // namespace ems::model
