#pragma once
// One paged tensor of an engine's KV: element type, order, shape, strides.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace ems::context {

enum class KvOrder : uint8_t { kTokensFirst, kHeadsFirst };
enum class KvDtype : uint8_t {
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt8,
  kUint8
};
inline constexpr size_t kKvDtypes = 7;
uint32_t BytesOf(KvDtype dtype);         // of one element
std::string_view NameOf(KvDtype dtype);  // "bf16", as ParseDtype reads it; lives for ever
std::string_view NameOf(KvOrder order);  // "NHD", "HND"
// Errors: kInvalidArgument  none of "f32|float32", "f16|float16|half", "bf16|bfloat16",
// "fp8_e4m3|float8_e4m3fn|…", "fp8_e5m2|float8_e5m2|…", "int8|i8", "uint8|u8", in any case of
// letters, with or without a leading "torch."
Result<KvDtype> ParseDtype(std::string_view name);

// One tensor of one layer. Strides in bytes; 0: dense. Owner of the memory: the caller.
struct KvTensor {
  std::byte* data = nullptr;
  uint64_t bytes = 0;  // from `data` to the end of the last element at least
  KvDtype dtype = KvDtype::kBfloat16;
  KvOrder order = KvOrder::kTokensFirst;
  uint64_t blocks = 0;
  uint32_t block_tokens = 0;
  uint32_t heads = 1;
  uint32_t head_size = 0;  // elements; 0: an empty tensor (MLA engines pass one), carries no bytes
  uint64_t block_stride = 0, token_stride = 0, head_stride = 0;
};

}  // namespace ems::context
