// What must hold: rows land where the layout says, rounded to the storage's type, and blocks lie as
// ems_context keeps them.
#include "pdc/engine/kv_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace ems::pdc {
namespace {

struct Arena {
  explicit Arena(const KvOptions& options, uint32_t blocks = 3)
      : memory(KvArena::BlockBytes(config, options) * blocks + 11),
        arena(*KvArena::Create(config, options, memory)) {}
  ModelConfig config;
  std::vector<std::byte> memory;
  std::unique_ptr<KvArena> arena;
};

TEST(KvArenaTest, HoldsAsManyWholeBlocksAsFit) {
  Arena made({.block_tokens = 8});
  EXPECT_EQ(made.arena->pool().blocks(), 3U);
  EXPECT_EQ(made.arena->block_bytes(), 3U * 8 * 48 * 2);
  const auto layout = made.arena->Layout();
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->BlockBytes(0, 8), made.arena->block_bytes());
  EXPECT_EQ(layout->slots(0), 24U);
  EXPECT_EQ(layout->Fingerprint(), "kv1 3*(g0 bf16:NHD:1x32 bf16:NHD:1x16)");
}

TEST(KvArenaTest, RowsLandWhereTheLayoutSays) {
  for (const KvStorage storage : {KvStorage::kF32, KvStorage::kBf16}) {
    Arena made({.storage = storage, .block_tokens = 8});
    std::vector<float> latent(32), rope(16);
    for (size_t i = 0; i < latent.size(); ++i) latent[i] = 1.0F + static_cast<float>(i) / 1000;
    for (size_t i = 0; i < rope.size(); ++i) rope[i] = -2.0F - static_cast<float>(i) / 1000;
    made.arena->Write(1, 2, 5, latent.data(), rope.data());
    const auto layout = *made.arena->Layout();
    std::vector<MutableBytes> parts;
    ASSERT_TRUE(layout.AppendLayerParts(1, {{{2 * 8 + 5, 1}}}, &parts).ok());
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].data(), made.arena->latents(1, 2) + 5 * 32 * made.arena->element_bytes());
    EXPECT_EQ(parts[1].data(), made.arena->ropes(1, 2) + 5 * 16 * made.arena->element_bytes());
    for (size_t i = 0; i < 32; ++i) {
      float got = 0;
      if (storage == KvStorage::kF32) {
        std::memcpy(&got, parts[0].data() + i * 4, 4);
        EXPECT_EQ(got, latent[i]);
      } else {
        std::memcpy(reinterpret_cast<std::byte*>(&got) + 2, parts[0].data() + i * 2, 2);
        EXPECT_NEAR(got, latent[i], 1.0 / 256);
      }
    }
    const std::byte none{};
    EXPECT_EQ(std::count(made.memory.begin(), made.memory.end(), none),
              static_cast<std::ptrdiff_t>(made.memory.size() - 48 * made.arena->element_bytes()) +
                  std::count(parts[0].begin(), parts[0].end(), none) +
                  std::count(parts[1].begin(), parts[1].end(), none));
  }
}

TEST(KvArenaTest, RefusesWhatCannotBe) {
  ModelConfig config;
  std::vector<std::byte> memory(10'000);
  const auto code = [&](const KvOptions& options, MutableBytes bytes) {
    return KvArena::Create(config, options, bytes).status().code();
  };
  EXPECT_EQ(code({.block_tokens = 8}, memory), StatusCode::kOk);
  EXPECT_EQ(code({.block_tokens = 0}, memory), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_tokens = 5000}, memory), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_tokens = 128}, memory), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.block_tokens = 8}, MutableBytes(memory).subspan(1)),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
