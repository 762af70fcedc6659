#pragma once
// Block hashes as other engines compute them, so that what they already name can be found by name.
//
//   vLLM, sha256_cbor, xxhash_cbor   H(CBOR of [parent, [tokens …], extra keys or null]),
//   canonical;
//                                    the first parent, NONE_HASH, is H(CBOR of the text of the
//                                    PYTHONHASHSEED variable), with H = SHA-256 or xxh3_128
//   SGLang, hierarchical cache       SHA-256(parent's 32 bytes, if any · tokens as u32,
//                                    little-endian), as hexadecimal text
//
// Sources: vllm/v1/core/kv_cache_utils.py and vllm/utils/hashing.py (0.17), sglang's
// hicache_storage.py. vLLM's default (pickle) is not to be had outside Python. None of them has the
// model, dtype or layout in it: give BlockHasher::OwnKey what comes from here, or keep each model
// and layout in a namespace of its own.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace ems::context {

enum class VllmHash : uint8_t {
  kSha256Cbor,  // 32 bytes
  kXxhashCbor,  // 16 bytes
};

// One of the extra keys of a block. vLLM's order: LoRA name (text); for each multi-modal input that
// reaches into the block its identifier and where it begins, seen from the block's first token; in
// the first block the cache salt (text); SHA-256 of prompt embeddings (bytes).
struct ExtraBytes {
  std::string bytes;
};
using ExtraKey = std::variant<std::string, ExtraBytes, std::pair<std::string, int64_t>>;

// NONE_HASH where PYTHONHASHSEED is `seed`. Without it vLLM draws one at random: nothing can be
// shared then, and nothing computed here.
std::string VllmNoneHash(VllmHash hash, std::string_view seed);
// No extra keys: null, as vLLM has it.
std::string VllmBlockHash(VllmHash hash, std::string_view parent, std::span<const int32_t> tokens,
                          std::span<const ExtraKey> extra = {});
// Of all full blocks; a last one that is not full has none. Shape: `extra` is [blocks] or shorter:
// blocks behind its end have none. `parent`: VllmNoneHash, or the hash of the block before
// tokens[0]. `block_tokens` 0: no blocks. Cost: O(tokens), SHA-256 at 0.5–2 GB/s of CBOR, which is
// 1–5 bytes a token.
std::vector<std::string> VllmBlockHashes(VllmHash hash, std::string_view parent,
                                         std::span<const int32_t> tokens, uint32_t block_tokens,
                                         std::span<const std::vector<ExtraKey>> extra = {});
// A hash with its KV cache group, as vLLM's block pool names blocks: hash · u32 big-endian.
std::string VllmGroupKey(std::string_view hash, uint32_t group);

// `parent`: 64 hexadecimal digits, or empty at the start of a prompt. What is not hexadecimal
// counts as 0. For EAGLE give both tokens of each pair, one after the other.
std::string SglangPageHash(std::string_view parent, std::span<const int32_t> tokens);
// Of all full pages.
std::vector<std::string> SglangPageHashes(std::string_view parent, std::span<const int32_t> tokens,
                                          uint32_t page_tokens);

}  // namespace ems::context
