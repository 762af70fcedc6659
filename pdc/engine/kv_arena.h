#pragma once
// The memory that KV blocks lie in, and how: the engine's side of ems_context's KvLayout.
//
// A block holds `block_tokens` tokens of all layers: layer by layer, first the latents, then the
// rotated keys of its tokens. That is the order of a cached block, so a full block is one piece of
// memory, the same bytes in the arena and in the pool.
#include <cstdint>
#include <string>

#include "common/bytes.h"
#include "common/status.h"
#include "ems_context/kv_layout.h"
#include "pdc/engine/kv_block_pool.h"
#include "pdc/engine/model_config.h"

namespace ems::pdc {

enum class KvStorage : uint8_t { kBf16, kF32 };
constexpr std::string_view NameOf(KvStorage storage) {
  return storage == KvStorage::kBf16 ? "bf16" : "f32";
}

struct KvOptions {
  KvStorage storage = KvStorage::kBf16;
  uint32_t block_tokens = 128;
};

// Threading: the description is immutable; blocks' bytes belong to who holds the block; pool() is
// thread-safe.
class KvArena final {
 public:
  // As many whole blocks as fit into `memory`, which the caller owns and which outlives the arena;
  // its contents may be anything.
  // Errors: kInvalidArgument  block_tokens not 1 to 4096, no room for a block, memory not aligned
  // to 4 bytes
  static Result<std::unique_ptr<KvArena>> Create(const ModelConfig& config,
                                                 const KvOptions& options, MutableBytes memory);
  static uint64_t BlockBytes(const ModelConfig& config, const KvOptions& options);

  const KvOptions& options() const { return options_; }
  uint32_t block_tokens() const { return options_.block_tokens; }
  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t layers() const { return layers_; }
  uint32_t latent_dim() const { return latent_dim_; }
  uint32_t rope_dim() const { return rope_dim_; }
  KvBlockPool& pool() { return pool_; }

  // For PagedCache: layers × {latent, rope}, token slots as block * block_tokens + token.
  Result<context::KvLayout> Layout() const;
  MutableBytes block(BlockId block) const {
    return memory_.subspan(uint64_t{block} * block_bytes_, block_bytes_);
  }

  // Writes a token's row of a layer, rounded to the storage's type. `latent`: [latent_dim],
  // `rope`: [rope_dim].
  void Write(uint32_t layer, BlockId block, uint32_t token, const float* latent,
             const float* rope) const;
  // Where rows of a layer begin in a block: latents, rotated keys. A row follows the other.
  const std::byte* latents(uint32_t layer, BlockId block) const { return at(layer, block); }
  const std::byte* ropes(uint32_t layer, BlockId block) const {
    return at(layer, block) + uint64_t{options_.block_tokens} * latent_dim_ * element_bytes_;
  }
  uint32_t element_bytes() const { return element_bytes_; }

 private:
  KvArena(const ModelConfig& config, const KvOptions& options, MutableBytes memory);
  std::byte* at(uint32_t layer, BlockId block) const {
    return memory_.data() + uint64_t{block} * block_bytes_ + layer * layer_bytes_;
  }

  const KvOptions options_;
  const uint32_t layers_, latent_dim_, rope_dim_, element_bytes_;
  const uint64_t layer_bytes_, block_bytes_;
  const MutableBytes memory_;
  KvBlockPool pool_;
};

}  // namespace ems::pdc
