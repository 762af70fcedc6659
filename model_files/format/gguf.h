#pragma once
// The GGUF format of ggml and llama.cpp, versions 2 and 3, little-endian: metadata, tensor infos,
// aligned tensors. Source: the GGUF specification of ggml (github.com/ggml-org/ggml); types beyond
// it from ggml.h. Files are untrusted; every count and every length is bounded before anything is
// allocated.
#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

inline constexpr uint64_t kGgufHeaderBytesMax = 256 * kMiB;  // vocabularies make it tens of MiB
inline constexpr uint64_t kGgufMetadataMax = 100'000;        // key-value pairs
inline constexpr uint32_t kGgufArrayDepthMax = 4;
inline constexpr uint64_t kGgufDefaultAlignment = 32;

// Parses the header from the first bytes of a file of `file_bytes` bytes; `file` is for messages.
// The format does not say how long its header is: with too few bytes the answer is a guess of at
// least twice as many, so that a caller who reads and parses again costs O(header) altogether.
// `shape` of each tensor is reversed: GGUF lists the innermost dimension first. Metadata arrays of
// up to 16 elements are kept as text, longer ones as their length and type. Errors:
// kInvalidArgument  not that format, or damaged: names the file, the tensor or key, and the numbers
//         kUnimplemented    big-endian, version 1, a tensor type that ggml removed or that is not
//         known here
// Cost: O(first_bytes), does not block. Threading: pure.
Result<HeaderParse> ParseGguf(ConstBytes first_bytes, uint64_t file_bytes, std::string_view file);

}  // namespace ems::model
