// What must hold: attention in its absorbed form gives what a textbook's does, with keys and values
// made for each head; a row depends on its own input and on the cache below its position alone.
#include "pdc/engine/internal/attention.h"

#include <gtest/gtest.h>

#include "tests/pdc/engine/internal/layer_rig.h"

namespace ems::pdc::internal {
namespace {

using test::ReferenceModel;
using test::SameBits;
using test::TinyConfig;

constexpr uint32_t kLayer = 1;
constexpr char kSelf[] = "model.layers.1.self_attn.";

struct AttentionRig : LayerRig {
  explicit AttentionRig(const ModelConfig& config = TinyConfig(), const KvOptions& kv = kWideKv,
                        size_t threads = 1)
      : LayerRig(config, kv, threads), attention(model, &compute, 256) {}

  // `segments` name rows of `x`.
  FloatRows Run(std::span<const Segment> segments, const FloatRows& x, size_t rows) {
    FloatRows out(rows, model.config.hidden);
    attention.Run(model.layers[kLayer].attention, kLayer, segments, x, rows, out);
    return out;
  }
  FloatRows RunAll(const KvSequence& kv, const FloatRows& x, size_t rows) {
    const Segment segment{&kv, 0, rows, 0};
    return Run({&segment, 1}, x, rows);
  }

  Attention attention;
};

ModelConfig OddConfig() {
  ModelConfig config = TinyConfig();
  config.hidden = 80;
  config.heads = 3;
  config.nope_dim = 20;
  config.rope_dim = 6;
  config.value_dim = 13;
  config.latent_dim = 48;
  config.q_lora_dim = 32;
  return config;
}

TEST(AttentionTest, GivesWhatATextbookDoesWithKeysAndValuesOfEachHead) {
  for (const ModelConfig& config : {TinyConfig(), OddConfig()}) {
    AttentionRig rig(config);
    constexpr size_t kRows = 70;  // two tiles of keys, the last one in part
    const FloatRows x = RandomRows(kRows, config.hidden, 1);
    const KvSequence kv = rig.Sequence(kRows);
    const FloatRows out = rig.RunAll(kv, x, kRows);
    std::vector<ReferenceModel::Key> cache;
    for (size_t position = 0; position < kRows; ++position) {
      const auto row = RowOf(x, position, config.hidden);
      rig.reference.Remember(kSelf, row, position, &cache);
      ExpectNear(RowOf(out, position, config.hidden),
                 rig.reference.Attend(kSelf, row, position, cache), 2e-4);
    }
  }
}

TEST(AttentionTest, HowRowsAreCutAndSharedOutChangesNoBit) {
  const ModelConfig config = TinyConfig();
  constexpr size_t kRows = 131;
  const FloatRows x = RandomRows(kRows, config.hidden, 2);
  AttentionRig rig, threaded(config, kWideKv, 3);
  const FloatRows whole = rig.RunAll(rig.Sequence(kRows), x, kRows);
  const FloatRows shared = threaded.RunAll(threaded.Sequence(kRows), x, kRows);
  for (const size_t piece : {1, 7, 64, 100}) {
    const KvSequence kv = rig.Sequence(kRows);
    for (size_t first = 0; first < kRows; first += piece) {
      const size_t some = std::min(piece, kRows - first);
      FloatRows part(some, config.hidden);
      for (size_t i = 0; i < some; ++i) std::copy_n(x.row(first + i), config.hidden, part.row(i));
      const Segment segment{&kv, 0, some, static_cast<uint32_t>(first)};
      const FloatRows out = rig.Run({&segment, 1}, part, some);
      for (size_t i = 0; i < some; ++i)
        ASSERT_TRUE(
            SameBits(BitsOf(out, i, config.hidden), BitsOf(whole, first + i, config.hidden)))
            << "row " << first + i << " in pieces of " << piece;
    }
  }
  for (size_t row = 0; row < kRows; ++row)
    EXPECT_TRUE(SameBits(BitsOf(shared, row, config.hidden), BitsOf(whole, row, config.hidden)));
}

TEST(AttentionTest, SequencesOfAStepDoNotSeeEachOther) {
  const ModelConfig config = TinyConfig();
  constexpr size_t kFirst = 40, kSecond = 70;
  const FloatRows x = RandomRows(kFirst + kSecond, config.hidden, 3);
  AttentionRig rig;
  const KvSequence one = rig.Sequence(kFirst), two = rig.Sequence(kSecond);
  const Segment both[] = {{&one, 0, kFirst, 0}, {&two, kFirst, kSecond, 0}};
  const FloatRows together = rig.Run(both, x, kFirst + kSecond);
  FloatRows tail(kSecond, config.hidden);
  for (size_t i = 0; i < kSecond; ++i) std::copy_n(x.row(kFirst + i), config.hidden, tail.row(i));
  const FloatRows alone = rig.RunAll(rig.Sequence(kSecond), tail, kSecond);
  for (size_t row = 0; row < kSecond; ++row)
    EXPECT_TRUE(
        SameBits(BitsOf(together, kFirst + row, config.hidden), BitsOf(alone, row, config.hidden)));
}

TEST(AttentionTest, TheCacheHoldsLatentsAndRotatedKeysRounded) {
  const ModelConfig config = TinyConfig();
  constexpr size_t kRows = 33;
  const FloatRows x = RandomRows(kRows, config.hidden, 4);
  AttentionRig rig(config, {.storage = KvStorage::kBf16, .block_tokens = 16});
  const KvSequence kv = rig.Sequence(kRows);
  rig.RunAll(kv, x, kRows);
  std::vector<ReferenceModel::Key> keys;
  for (size_t position = 0; position < kRows; ++position) {
    rig.reference.Remember(kSelf, RowOf(x, position, config.hidden), position, &keys);
    const BlockId block = kv.blocks()[position / 16];
    const auto expect = [&](const std::byte* from, const ReferenceModel::Vec& wanted) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, from + (position % 16 * wanted.size() + i) * sizeof bits, sizeof bits);
        // Eight bits of mantissa.
        ASSERT_NEAR(FromBf16(bits), wanted[i], std::fabs(wanted[i]) / 200 + 1e-4);
      }
    };
    expect(rig.arena->latents(kLayer, block), keys.back().latent);
    expect(rig.arena->ropes(kLayer, block), keys.back().rope);
  }
}

TEST(AttentionTest, WithoutKeysOfItsOwnItReadsWhatIsBelowAndWritesNothing) {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  constexpr uint32_t kTokens = 70;
  const FloatRows x = RandomRows(kTokens + 1, config.hidden, 5);
  AttentionRig rig(config);
  KvSequence kv = rig.Sequence(kTokens + 1);
  rig.RunAll(kv, x, kTokens);
  const std::vector<std::byte> before = rig.memory;
  const Segment next{&kv, 0, 1, kTokens};
  FloatRows out(1, config.hidden);
  rig.attention.Run(rig.model.mtp.attention, kLayer, {&next, 1}, x.from(kTokens), 1, out);
  EXPECT_EQ(rig.memory, before);
  std::vector<ReferenceModel::Key> cache;
  for (size_t position = 0; position < kTokens; ++position)
    rig.reference.Remember(kSelf, RowOf(x, position, config.hidden), position, &cache);
  ExpectNear(RowOf(out, 0, config.hidden),
             rig.reference.Attend("model.mtp.self_attn.", RowOf(x, kTokens, config.hidden), kTokens,
                                  cache),
             2e-4);
}

}  // namespace
}  // namespace ems::pdc::internal
