#pragma once
// What answers say of keys that are hot: looked up for every read that is answered, written once in
// a while by one thread.
//
// A word a key: 56 bits of its hash, and the hint. Two keys may share a word's 56 bits: then the
// answer to one of them tells of copies that are not there, where its reader asks in vain. Bound:
// kPlaces words; a key for which both of its places are taken is not told of.
#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "common/hash.h"
#include "common/ids.h"

namespace ems::server {

// Threading: Of and any thread-safe, Show from one thread.
class CopyHints final {
 public:
  static constexpr size_t kPlaces = 256;
  struct Hint {
    NamespaceRef ns;
    Hash128 hash;
    uint8_t packed = 0;  // wire::CopyHint, not 0
  };

  // Of no key is anything said: the caller needs no hash. Cost: a load.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // 0: nothing is said of the key. Cost: two loads.
  uint8_t Of(NamespaceRef ns, Hash128 hash) const {
    const uint64_t mixed = Mixed(ns, hash);
    for (size_t i = 0; i < 2; ++i) {
      const uint64_t word = words_[(mixed ^ i) % kPlaces].load(std::memory_order_relaxed);
      if (word >> 8 == mixed >> 8) return static_cast<uint8_t>(word);
    }
    return 0;
  }
  // These are the hints from now on, and no others.
  void Show(std::span<const Hint> hints) {
    std::array<uint64_t, kPlaces> words{};
    for (const Hint& hint : hints) {
      const uint64_t mixed = Mixed(hint.ns, hint.hash);
      for (size_t i = 0; i < 2; ++i) {
        uint64_t& word = words[(mixed ^ i) % kPlaces];
        if (word != 0) continue;
        word = (mixed & ~uint64_t{0xff}) | hint.packed;
        break;
      }
    }
    for (size_t i = 0; i < kPlaces; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    any_.store(!hints.empty(), std::memory_order_relaxed);
  }

 private:
  static uint64_t Mixed(NamespaceRef ns, Hash128 hash) {
    const uint64_t name = uint64_t{ns.id.value()} << 32 | ns.generation;
    const uint64_t mixed = (hash.lo ^ name) * 0x9e3779b97f4a7c15;
    return mixed ^ hash.hi >> 7;
  }

  std::atomic<bool> any_{false};
  std::array<std::atomic<uint64_t>, kPlaces> words_{};
};

}  // namespace ems::server
