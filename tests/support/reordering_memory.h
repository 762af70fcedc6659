#pragma once
// Memory that behaves as badly as a card that reads another machine's memory may: the cache lines
// of one read come in any order, and the owner goes on writing between any two of them.
//
// Deterministic: order and interleaving follow from the seed. Invariant: a word is whole, and words
// are loaded in program order (what RemoteMemory guarantees, and no more).
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/check.h"
#include "fabric/shm/transport.h"

namespace ems::testing {

// Threading: one thread.
class ReorderingMemory final : public fabric::RemoteMemory {
 public:
  // `between` runs before each line and each word: the owner's turn. `addressable`: it has an
  // address, for views; what is read through that comes in program order.
  ReorderingMemory(MutableBytes bytes, std::mt19937_64* random, std::function<void()> between,
                   bool addressable = false)
      : bytes_(bytes), random_(random), between_(std::move(between)), addressable_(addressable) {}

  uint64_t size_bytes() const override { return bytes_.size(); }
  uint64_t LoadWord(uint64_t offset) const override {
    EMS_CHECK(offset % 8 == 0 && offset + 8 <= bytes_.size());
    between_();
    uint64_t word = 0;
    std::memcpy(&word, bytes_.data() + offset, sizeof(word));
    return word;
  }
  void Read(uint64_t offset, MutableBytes into) const override {
    EMS_CHECK(offset <= bytes_.size() && into.size() <= bytes_.size() - offset);
    const uint64_t first = offset / kLine;
    lines_.resize(into.empty() ? 0 : (offset + into.size() - 1) / kLine - first + 1);
    std::iota(lines_.begin(), lines_.end(), first);
    std::shuffle(lines_.begin(), lines_.end(), *random_);
    for (const uint64_t line : lines_) {
      between_();
      const uint64_t begin = std::max(line * kLine, offset);
      const uint64_t end = std::min((line + 1) * kLine, offset + into.size());
      std::memcpy(into.data() + (begin - offset), bytes_.data() + begin, end - begin);
    }
  }
  const std::byte* address() const override { return addressable_ ? bytes_.data() : nullptr; }

 private:
  static constexpr uint64_t kLine = 64;
  MutableBytes bytes_;
  std::mt19937_64* random_;
  std::function<void()> between_;
  const bool addressable_;
  mutable std::vector<uint64_t> lines_;
};

}  // namespace ems::testing
