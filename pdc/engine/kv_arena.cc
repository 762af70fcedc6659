#include "pdc/engine/kv_arena.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"
#include "pdc/engine/internal/kernel_types.h"

namespace ems::pdc {
namespace {

constexpr uint32_t kBlockTokensMax = 4096;
constexpr uint64_t kBlocksMax = UINT32_MAX / 2;

uint32_t BytesOf(KvStorage storage) { return storage == KvStorage::kBf16 ? 2 : 4; }

uint64_t LayerBytes(const ModelConfig& config, const KvOptions& options) {
  return uint64_t{options.block_tokens} * config.cache_dim() * BytesOf(options.storage);
}

// Returns the end of what was written.
std::byte* WriteRow(KvStorage storage, const float* from, uint32_t size, std::byte* to) {
  if (storage == KvStorage::kF32) {
    std::memcpy(to, from, size * sizeof(float));
    return to + size * sizeof(float);
  }
  for (uint32_t i = 0; i < size; ++i) {
    const uint16_t bits = internal::ToBf16(from[i]);
    std::memcpy(to, &bits, sizeof bits);
    to += sizeof bits;
  }
  return to;
}

}  // namespace

uint64_t KvArena::BlockBytes(const ModelConfig& config, const KvOptions& options) {
  return config.layers * LayerBytes(config, options);
}

KvArena::KvArena(const ModelConfig& config, const KvOptions& options, MutableBytes memory)
    : options_(options),
      layers_(config.layers),
      latent_dim_(config.latent_dim),
      rope_dim_(config.rope_dim),
      element_bytes_(BytesOf(options.storage)),
      layer_bytes_(LayerBytes(config, options)),
      block_bytes_(BlockBytes(config, options)),
      memory_(memory),
      pool_(static_cast<uint32_t>(std::min(memory.size() / block_bytes_, kBlocksMax))) {}

Result<std::unique_ptr<KvArena>> KvArena::Create(const ModelConfig& config,
                                                 const KvOptions& options, MutableBytes memory) {
  if (options.block_tokens < 1 || options.block_tokens > kBlockTokensMax)
    return Error(StatusCode::kInvalidArgument, "a KV block of {} tokens, it has to be 1 to {}",
                 options.block_tokens, kBlockTokensMax);
  const uint64_t block_bytes = BlockBytes(config, options);
  if (memory.size() < block_bytes)
    return Error(StatusCode::kInvalidArgument, "{} bytes of memory for KV, one block takes {}",
                 memory.size(), block_bytes);
  if (reinterpret_cast<uintptr_t>(memory.data()) % sizeof(float) != 0)
    return Error(StatusCode::kInvalidArgument, "memory for KV has to be aligned to 4 bytes");
  return std::unique_ptr<KvArena>(
      new KvArena(config, options, memory));  // NOLINT: the constructor is private
}

Result<context::KvLayout> KvArena::Layout() const {
  const auto dtype = options_.storage == KvStorage::kBf16 ? context::KvDtype::kBfloat16
                                                          : context::KvDtype::kFloat32;
  std::vector<context::KvLayer> layers;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    context::KvTensor latent;
    latent.data = at(layer, 0);
    latent.dtype = dtype;
    latent.blocks = pool_.blocks();
    latent.block_tokens = options_.block_tokens;
    latent.head_size = latent_dim_;
    latent.block_stride = block_bytes_;
    context::KvTensor rope = latent;
    rope.data += uint64_t{options_.block_tokens} * latent_dim_ * element_bytes_;
    rope.head_size = rope_dim_;
    // To the end of the last element of the last block.
    const uint64_t before = (latent.blocks - 1) * block_bytes_;
    const uint64_t row = uint64_t{options_.block_tokens} * element_bytes_;
    latent.bytes = before + row * latent_dim_;
    rope.bytes = before + row * rope_dim_;
    context::KvLayer made;
    made.tensors = {latent, rope};
    layers.push_back(std::move(made));
  }
  return context::KvLayout::Make(std::move(layers));
}

void KvArena::Write(uint32_t layer, BlockId block, uint32_t token, const float* latent,
                    const float* rope) const {
  EMS_CHECK(layer < layers_ && block < pool_.blocks() && token < options_.block_tokens,
            "layer {}, block {}, token {} of {}, {}, {}", layer, block, token, layers_,
            pool_.blocks(), options_.block_tokens);
  std::byte* const base = at(layer, block);
  WriteRow(options_.storage, latent, latent_dim_,
           base + uint64_t{token} * latent_dim_ * element_bytes_);
  WriteRow(options_.storage, rope, rope_dim_,
           base + (uint64_t{options_.block_tokens} * latent_dim_ + uint64_t{token} * rope_dim_) *
                      element_bytes_);
}

}  // namespace ems::pdc
