#pragma once
// The safetensors format: 8 bytes of length, a JSON header, tensors back to back. As strict as the
// reference implementation (github.com/huggingface/safetensors, tensor.rs): tensors fill the file
// without holes or overlap, sizes equal shape times element size. Files are untrusted; every count
// is bounded.
#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "common/status.h"
#include "model_files/format/tensor_table.h"

namespace ems::model {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the reference's own limit

// Parses the header from the first bytes of a file of `file_bytes` bytes; `file` is for messages.
// With fewer bytes than the header has it answers how many it needs: 8 first, then the whole
// header. Errors: kInvalidArgument  not that format, or damaged: names the file, the tensor and the
// numbers Cost: O(header), does not block. Threading: pure.
Result<HeaderParse> ParseSafetensors(ConstBytes first_bytes, uint64_t file_bytes,
                                     std::string_view file);

}  // namespace ems::model
