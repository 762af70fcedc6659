#pragma once
// Paged KV memory for tests, and the plainest way to read and write it: head by head, slot by slot,
// written from the description of the format and not from the code under test.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ems_context/kv_layout.h"

namespace ems::context::test {

struct TensorShape {
  uint32_t heads = 1;
  uint32_t head_size = 0;
  KvDtype dtype = KvDtype::kBfloat16;
  KvOrder order = KvOrder::kTokensFirst;
  uint64_t gap = 0;  // bytes between heads, tokens and blocks that belong to nobody
};

// Owns the memory of layers that all have the same paging. Guard bytes lie between tensors.
class PagedMemory final {
 public:
  PagedMemory(uint64_t blocks, uint32_t block_tokens) : blocks_(blocks), tokens_(block_tokens) {}

  KvTensor Add(const TensorShape& shape) {
    KvTensor tensor;
    tensor.dtype = shape.dtype;
    tensor.order = shape.order;
    tensor.blocks = blocks_;
    tensor.block_tokens = tokens_;
    tensor.heads = shape.heads;
    tensor.head_size = shape.head_size;
    if (shape.head_size == 0) return tensor;
    const uint64_t head = uint64_t{shape.head_size} * BytesOf(shape.dtype) + shape.gap;
    const bool tokens_first = shape.order == KvOrder::kTokensFirst;
    const uint64_t row = head * (tokens_first ? shape.heads : tokens_) + shape.gap;
    const uint64_t block = row * (tokens_first ? tokens_ : shape.heads) + shape.gap;
    if (shape.gap > 0) {
      tensor.head_stride = tokens_first ? head : row;
      tensor.token_stride = tokens_first ? row : head;
      tensor.block_stride = block;
    }
    tensor.bytes = block * blocks_;
    memory_.push_back(std::make_unique<std::string>(tensor.bytes + kGuard, kEmpty));
    tensor.data = reinterpret_cast<std::byte*>(memory_.back()->data());
    return tensor;
  }

  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto& one : memory_) {
      for (size_t at = 0; at + 8 <= one->size(); at += 8) {
        const uint64_t word = random();
        std::memcpy(one->data() + at, &word, 8);
      }
    }
  }
  void Clear() {
    for (auto& one : memory_) std::fill(one->begin(), one->end(), kEmpty);
  }
  std::vector<std::string> Copy() const {
    std::vector<std::string> copy;
    for (const auto& one : memory_) copy.push_back(*one);
    return copy;
  }

 private:
  static constexpr char kEmpty = '\x5a';
  static constexpr uint64_t kGuard = 64;
  uint64_t blocks_;
  uint32_t tokens_;
  std::vector<std::unique_ptr<std::string>> memory_;
};

// Calls visit(address, bytes) for each head of each token in the order of a cached block.
template <typename Visit>
void VisitHeads(const KvTensor& t, const std::vector<int64_t>& slots, Visit visit) {
  if (t.head_size == 0) return;
  const uint64_t head_bytes = uint64_t{t.head_size} * BytesOf(t.dtype);
  const bool nhd = t.order == KvOrder::kTokensFirst;
  const uint64_t hs =
      t.head_stride != 0 ? t.head_stride : (nhd ? head_bytes : head_bytes * t.block_tokens);
  const uint64_t ts =
      t.token_stride != 0 ? t.token_stride : (nhd ? head_bytes * t.heads : head_bytes);
  const uint64_t bs = t.block_stride != 0 ? t.block_stride : head_bytes * t.heads * t.block_tokens;
  const auto at = [&](int64_t slot, uint32_t head) {
    const auto s = static_cast<uint64_t>(slot);
    return t.data + s / t.block_tokens * bs + s % t.block_tokens * ts + head * hs;
  };
  if (nhd) {
    for (const int64_t slot : slots)
      for (uint32_t head = 0; head < t.heads; ++head) visit(at(slot, head), head_bytes);
  } else {
    for (uint32_t head = 0; head < t.heads; ++head)
      for (const int64_t slot : slots) visit(at(slot, head), head_bytes);
  }
}

inline std::string SlowGather(const std::vector<KvLayer>& layers, uint32_t group,
                              const std::vector<int64_t>& slots) {
  std::string block;
  for (const KvLayer& layer : layers) {
    if (layer.group != group) continue;
    for (const KvTensor& tensor : layer.tensors)
      VisitHeads(tensor, slots, [&](std::byte* data, uint64_t bytes) {
        block.append(reinterpret_cast<const char*>(data), bytes);
      });
  }
  return block;
}

inline void SlowScatter(const std::vector<KvLayer>& layers, uint32_t group,
                        const std::vector<int64_t>& slots, const std::string& block) {
  uint64_t from = 0;
  for (const KvLayer& layer : layers) {
    if (layer.group != group) continue;
    for (const KvTensor& tensor : layer.tensors)
      VisitHeads(tensor, slots, [&](std::byte* data, uint64_t bytes) {
        std::memcpy(data, block.data() + from, bytes);
        from += bytes;
      });
  }
}

inline std::string Joined(const std::vector<MutableBytes>& parts) {
  std::string bytes;
  for (const MutableBytes part : parts) bytes.append(AsText(part));
  return bytes;
}

// `tokens` different slots in any order, some of them neighbours.
inline std::vector<int64_t> RandomSlots(uint64_t slots, uint32_t tokens, std::mt19937_64* random) {
  std::vector<int64_t> all(slots);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  // Whole stretches change places, so that there are runs.
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t length = 1 + (*random)() % 9;
    const size_t from = (*random)() % all.size(), to = (*random)() % all.size();
    if (from + length <= to && to + length <= all.size())
      std::swap_ranges(all.begin() + static_cast<ptrdiff_t>(from),
                       all.begin() + static_cast<ptrdiff_t>(from + length),
                       all.begin() + static_cast<ptrdiff_t>(to));
  }
  all.resize(tokens);
  return all;
}

}  // namespace ems::context::test
