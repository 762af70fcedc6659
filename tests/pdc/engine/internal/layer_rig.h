#pragma once
// A made-up model, packed, with memory for its KV and what its layers compute with, for tests of
// single parts of the transformer.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "pdc/engine/internal/compute.h"
#include "pdc/engine/internal/kernels.h"
#include "pdc/engine/internal/packed_model.h"
#include "tests/pdc/engine/engine_rig.h"
#include "tests/pdc/engine/reference_model.h"

namespace ems::pdc::internal {

inline constexpr KvOptions kWideKv{.storage = KvStorage::kF32, .block_tokens = 16};

// Threading: one thread.
struct LayerRig {
  explicit LayerRig(const ModelConfig& config, const KvOptions& kv = kWideKv, size_t threads = 1)
      : weights(*ModelWeights::Make(config)),
        model(weights),
        memory(KvArena::BlockBytes(config, kv) * 64, std::byte{0xA5}),
        arena(*KvArena::Create(config, kv, memory)),
        compute(BestKernels(), threads, 1024),
        reference(weights) {}

  // Room for `tokens` tokens, all of them valid.
  KvSequence Sequence(uint32_t tokens) const {
    KvSequence kv(arena.get());
    EXPECT_EQ(kv.Reserve(tokens), OkStatus());
    EXPECT_EQ(kv.SetTokens(tokens), OkStatus());
    return kv;
  }

  const ModelWeights weights;
  const PackedModel model;
  std::vector<std::byte> memory;
  std::unique_ptr<KvArena> arena;
  Compute compute;
  test::ReferenceModel reference;
};

inline FloatRows RandomRows(size_t rows, size_t columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 1);
  FloatRows made(rows, columns);
  for (size_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < columns; ++i) made.row(row)[i] = normal(random);
  return made;
}
inline std::vector<double> RowOf(const FloatRows& rows, size_t row, size_t columns) {
  return {rows.row(row), rows.row(row) + columns};
}
inline std::vector<float> BitsOf(const FloatRows& rows, size_t row, size_t columns) {
  return {rows.row(row), rows.row(row) + columns};
}
inline void ExpectNear(const std::vector<double>& got, const std::vector<double>& wanted,
                       double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], tolerance) << i;
}

}  // namespace ems::pdc::internal
