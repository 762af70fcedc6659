#include "ems_context/kv_tensor.h"

#include <algorithm>
#include <array>
#include <string>

#include "common/bytes.h"

namespace ems::context {
namespace {

struct DtypeNames {
  KvDtype dtype;
  uint32_t bytes;
  std::array<std::string_view, 5> names;  // the first is ours
};
constexpr std::array<DtypeNames, kKvDtypes> kDtypes = {{
    {KvDtype::kFloat32, 4, {"f32", "float32", "fp32", "float"}},
    {KvDtype::kFloat16, 2, {"f16", "float16", "fp16", "half"}},
    {KvDtype::kBfloat16, 2, {"bf16", "bfloat16"}},
    {KvDtype::kFloat8E4M3, 1, {"fp8_e4m3", "float8_e4m3", "float8_e4m3fn", "f8_e4m3", "fp8"}},
    {KvDtype::kFloat8E5M2, 1, {"fp8_e5m2", "float8_e5m2", "f8_e5m2"}},
    {KvDtype::kInt8, 1, {"int8", "i8"}},
    {KvDtype::kUint8, 1, {"uint8", "u8"}},
}};

const DtypeNames& Entry(KvDtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

}  // namespace

uint32_t BytesOf(KvDtype dtype) { return Entry(dtype).bytes; }
std::string_view NameOf(KvDtype dtype) { return Entry(dtype).names[0]; }
std::string_view NameOf(KvOrder order) { return order == KvOrder::kTokensFirst ? "NHD" : "HND"; }

Result<KvDtype> ParseDtype(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::string_view wanted = lower;
  constexpr std::string_view kTorch = "torch.";
  if (wanted.starts_with(kTorch)) wanted.remove_prefix(kTorch.size());
  for (const DtypeNames& entry : kDtypes) {
    const auto found = std::find(entry.names.begin(), entry.names.end(), wanted);
    if (!wanted.empty() && found != entry.names.end()) return entry.dtype;
  }
  return Error(StatusCode::kInvalidArgument,
               "\"{}\" is not a KV dtype: bf16, f16, f32, fp8_e4m3, "
               "fp8_e5m2, int8 and uint8 are",
               Printable(name));
}

}  // namespace ems::context
