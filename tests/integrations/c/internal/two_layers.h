#pragma once
// The smallest paged KV of two layers: K and V of 16 blocks of 16 tokens, one head of 2 half
// floats.
#include <array>

#include "integrations/c/internal/kv_registration.h"

namespace ems::capi {

struct TwoLayers {
  TwoLayers() {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = {.data = memory.data() + i * kBytes,
                    .bytes = kBytes,
                    .layer = static_cast<uint32_t>(i / 2),
                    .dtype = EMS_KV_FLOAT16,
                    .order = EMS_KV_TOKENS_FIRST,
                    .block_tokens = 16,
                    .blocks = 16,
                    .heads = 1,
                    .head_size = 2,
                    .block_stride = 0,
                    .token_stride = 0,
                    .head_stride = 0};
    }
  }
  TwoLayers(const TwoLayers&) = delete;
  TwoLayers& operator=(const TwoLayers&) = delete;

  static constexpr size_t kBytes = size_t{16} * 16 * 4;  // of a tensor
  std::array<char, 4 * kBytes> memory{};
  std::array<ems_kv_tensor, 4> tensors{};
};

}  // namespace ems::capi
