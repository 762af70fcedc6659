#pragma once
// The safetensors format: 8 bytes of length, a JSON header, tensors back to back; and the index of
// a model in shards. As strict as the reference implementation (github.com/huggingface/safetensors,
// tensor.rs): tensors fill the file without holes or overlap, sizes equal shape times element size.
// Files are untrusted; every count is bounded.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_model/format/tensor_table.h"

namespace ems::model {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the reference's own limit
inline constexpr uint64_t kSafetensorsIndexBytesMax = 100'000'000;

// Parses the header from the first bytes of a file of `file_bytes` bytes; `file` is for messages.
// With fewer bytes than the header has it answers how many it needs: 8 first, then the whole
// header. Errors: kInvalidArgument  not that format, or damaged: names the file, the tensor and the
// numbers Cost: O(header), does not block. Threading: pure.
Result<HeaderParse> ParseSafetensors(ConstBytes first_bytes, uint64_t file_bytes,
                                     std::string_view file);

// model.safetensors.index.json: which shard holds which tensor.
struct SafetensorsIndex {
  std::unordered_map<std::string, uint32_t> shard_of;  // tensor → index into `shards`
  std::vector<std::string> shards;                     // relative paths, sorted, each once
};

// Parses a whole index. A shard is a relative path below the index's own folder: no "..", no empty
// or "." part, no leading slash, no backslash, no control character. Errors: kInvalidArgument  no
// such JSON, too large, or a shard's path that leads elsewhere
Result<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json, std::string_view file);

// Checks that shard `shard` has every tensor the index looks for in it. More tensors are fine:
// loaders ignore them. Errors: kInvalidArgument  naming the first missing tensor     kNotFound  the
// index names no such shard Cost: O(tensors of the index).
Status CheckShard(const SafetensorsIndex& index, std::string_view shard, const TensorTable& table);

}  // namespace ems::model
