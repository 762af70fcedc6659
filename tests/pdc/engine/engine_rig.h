#pragma once
// A made-up model with an engine and memory for its KV, for tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pdc/engine/engine.h"

namespace ems::pdc::test {

// One engine with its own KV. Dies on errors: a test cannot go on without.
class EngineRig {
 public:
  explicit EngineRig(const ModelConfig& config, KvOptions kv = {.block_tokens = 16},
                     const EngineOptions& options = {}, uint32_t blocks = 96)
      : EngineRig(Model::Make(*ModelWeights::Make(config)), kv, options, blocks) {}
  EngineRig(std::shared_ptr<const Model> model_in, KvOptions kv, const EngineOptions& options = {},
            uint32_t blocks = 96)
      : model(std::move(model_in)),
        memory(KvArena::BlockBytes(model->config(), kv) * blocks, std::byte{0xA5}),
        arena(*KvArena::Create(model->config(), kv, memory)),
        engine(*Engine::Create(model, options)) {}

  // Computes `tokens` after those of `kv`.
  ForwardOutput Compute(KvSequence* kv, std::span<const TokenId> tokens,
                        LogitsOf logits = LogitsOf::kAll) {
    const ForwardItem item{kv, tokens, logits};
    return *engine->Forward({&item, 1});
  }
  // Logits of all `tokens`, from nothing.
  std::vector<float> LogitsFor(std::span<const TokenId> tokens) {
    KvSequence kv(arena.get());
    return Compute(&kv, tokens).logits;
  }
  // The valid KV bytes of a sequence, token by token of each piece.
  std::string KvBytes(const KvSequence& kv) const {
    const auto layout = *arena->Layout();
    std::vector<MutableBytes> parts;
    EXPECT_TRUE(layout.AppendParts(0, *kv.Runs(0, kv.tokens()), &parts).ok());
    std::string bytes;
    for (const MutableBytes part : parts) bytes += AsText(part);
    return bytes;
  }

  std::shared_ptr<const Model> model;
  std::vector<std::byte> memory;
  std::unique_ptr<KvArena> arena;
  std::unique_ptr<Engine> engine;
};

inline std::vector<TokenId> RandomTokens(size_t count, uint64_t seed, uint32_t vocab = 264) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

// Equal to the bit, not just as numbers.
inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline ModelConfig TinyConfig() { return *PresetConfig("tiny"); }

}  // namespace ems::pdc::test
