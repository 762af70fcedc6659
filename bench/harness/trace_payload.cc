#include "bench/harness/trace_payload.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ems::bench {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kPageBytes = 4096;

// Distinct for each id: both steps can be undone.
uint64_t SeedOf(uint64_t block_id) {
  const uint64_t mixed = (block_id + kGolden) * 0xbf58476d1ce4e5b9;
  return mixed ^ (mixed >> 32);
}

// Word `index` depends on nothing before it, so the CPU works on several at once.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  const uint64_t state = seed + index * kGolden;
  return (state ^ (state >> 31)) * 0x94d049bb133111eb;
}

uint64_t CountInWord(uint64_t expected, const std::byte* bytes, size_t count) {
  std::array<std::byte, kWordBytes> right{};
  std::memcpy(right.data(), &expected, kWordBytes);
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += right[i] != bytes[i] ? 1 : 0;
  return wrong;
}

// Whether all whole words are right, without a branch in the loop.
bool WordsMatch(uint64_t seed, ConstBytes bytes) {
  uint64_t differences = 0;
  for (uint64_t i = 0; i < bytes.size() / kWordBytes; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * kWordBytes, kWordBytes);
    differences |= word ^ WordAt(seed, i);
  }
  return differences == 0;
}

}  // namespace

void FillBlock(uint64_t block_id, MutableBytes bytes) {
  const uint64_t seed = SeedOf(block_id);
  const size_t words = bytes.size() / kWordBytes;
  for (uint64_t i = 0; i < words; ++i) {
    const uint64_t word = WordAt(seed, i);
    std::memcpy(bytes.data() + i * kWordBytes, &word, kWordBytes);
  }
  const size_t rest = bytes.size() % kWordBytes;
  if (rest == 0) return;
  const uint64_t last = WordAt(seed, words);
  std::memcpy(bytes.data() + words * kWordBytes, &last, rest);
}

void Spoil(MutableBytes bytes, uint64_t value_bytes) {
  for (size_t value = 0; value < bytes.size(); value += value_bytes) {
    const MutableBytes one = bytes.subspan(value, std::min(value_bytes, bytes.size() - value));
    for (size_t at = 0; at < one.size(); at += kPageBytes)
      std::memset(one.data() + at, 0xee, std::min(kWordBytes, one.size() - at));
  }
}

uint64_t CountWrongBytes(uint64_t block_id, ConstBytes bytes) {
  const uint64_t seed = SeedOf(block_id);
  const size_t whole = bytes.size() / kWordBytes * kWordBytes;
  const size_t first = WordsMatch(seed, bytes) ? whole : 0;
  uint64_t wrong = 0;
  for (size_t at = first; at < bytes.size(); at += kWordBytes)
    wrong += CountInWord(WordAt(seed, at / kWordBytes), bytes.data() + at,
                         std::min(kWordBytes, bytes.size() - at));
  return wrong;
}

}  // namespace ems::bench
