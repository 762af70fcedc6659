// What must hold: KV and logits do not depend, in any bit, on chunks, batches, threads, kernels or
// blocks, nor on whether KV was computed or brought from elsewhere; every byte of KV counts; and
// calls that cannot be are refused before anything is computed.
#include "pdc/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;
using ::testing::HasSubstr;

ModelConfig WithMtp(WeightDtype weights = WeightDtype::kBf16) {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  config.weights = weights;
  return config;
}

// One sequence computed in one call: what everything else is compared with.
struct Whole {
  Whole(EngineRig* rig, std::vector<TokenId> tokens_in)
      : tokens(std::move(tokens_in)), kv(rig->arena.get()) {
    logits = rig->Compute(&kv, tokens).logits;
    bytes = rig->KvBytes(kv);
  }
  std::span<const float> row(size_t i) const { return std::span(logits).subspan(i * 264, 264); }
  std::vector<TokenId> tokens;
  KvSequence kv;
  std::vector<float> logits;
  std::string bytes;
};

// Sequences side by side, in calls of random pieces: each row and each byte as in one call.
void ExpectIdentical(const ModelConfig& config, const KvOptions& kv, const EngineOptions& options,
                     uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {} block {} rows_max {} threads {} kernels {}", seed,
                           kv.block_tokens, options.rows_max, options.threads, options.kernels));
  const auto model = Model::Make(*ModelWeights::Make(config));
  EngineRig alone(model, {.storage = kv.storage, .block_tokens = 16});
  EngineRig rig(model, kv, options, 4096 / kv.block_tokens);
  std::mt19937_64 random(seed);
  std::vector<Whole> wholes;
  for (int i = 0; i < 4; ++i)
    wholes.emplace_back(&alone, RandomTokens(1 + random() % 200, random()));
  std::vector<KvSequence> sequences;
  for (size_t i = 0; i < wholes.size(); ++i) sequences.emplace_back(rig.arena.get());
  for (bool more = true; more;) {
    more = false;
    std::vector<ForwardItem> items;
    std::vector<size_t> whose;
    for (size_t i = 0; i < wholes.size(); ++i) {
      const size_t done = sequences[i].tokens(), left = wholes[i].tokens.size() - done;
      if (left == 0) continue;
      more = true;
      if (random() % 3 == 0) continue;  // not in this batch
      const size_t some = random() % 4 == 0 ? 1 : 1 + random() % left;
      items.push_back(
          {&sequences[i], std::span(wholes[i].tokens).subspan(done, some), LogitsOf::kAll});
      whose.push_back(i);
    }
    if (items.empty()) continue;
    std::vector<size_t> starts;
    for (const ForwardItem& item : items) starts.push_back(item.sequence->tokens());
    const auto output = rig.engine->Forward(items);
    ASSERT_TRUE(output.ok()) << output.status();
    for (size_t i = 0; i < items.size(); ++i)
      for (size_t t = 0; t < items[i].tokens.size(); ++t)
        ASSERT_TRUE(SameBits(output->row(output->first_row[i] + static_cast<uint32_t>(t)),
                             wholes[whose[i]].row(starts[i] + t)))
            << "sequence " << whose[i] << " token " << starts[i] + t;
  }
  for (size_t i = 0; i < wholes.size(); ++i)
    EXPECT_TRUE(rig.KvBytes(sequences[i]) == wholes[i].bytes) << "sequence " << i;
}

TEST(EngineTest, ChunksAndBatchesChangeNoBit) {
  for (uint64_t seed = 1; seed <= 6; ++seed)
    ExpectIdentical(TinyConfig(), {.block_tokens = 16}, {}, seed);
}

TEST(EngineTest, BlocksAndStepsOfAnySizeChangeNoBit) {
  for (const uint32_t block : {1U, 7U, 33U, 128U})
    ExpectIdentical(TinyConfig(), {.block_tokens = block}, {.rows_max = 1 + 13 * (block % 5)},
                    block);
}

TEST(EngineTest, ThreadsChangeNoBit) {
  ModelConfig config = TinyConfig();
  config.hidden = 256;  // enough work to share
  for (const uint32_t threads : {2U, 3U, 5U})
    ExpectIdentical(config, {.block_tokens = 32}, {.threads = threads}, threads);
}

TEST(EngineTest, OtherKernelsGiveTheSameBits) {
  for (const std::string kernels : {"avx512", "avx2", "portable"}) {
    const auto model = Model::Make(*ModelWeights::Make(TinyConfig()));
    const Status made = Engine::Create(model, {.kernels = kernels}).status();
    if (!made.ok()) {
      ASSERT_NE(kernels, "portable") << made;
      ASSERT_NE(Message(made).find("on this processor"), std::string_view::npos) << made;
      continue;
    }
    ExpectIdentical(TinyConfig(), {.block_tokens = 16}, {.kernels = kernels}, 3);
  }
}

TEST(EngineTest, OtherWeightsAndStorageChangeNoBit) {
  ExpectIdentical(WithMtp(WeightDtype::kInt8), {.block_tokens = 16}, {}, 11);
  ExpectIdentical(WithMtp(WeightDtype::kF32), {.storage = KvStorage::kF32, .block_tokens = 24}, {},
                  12);
}

TEST(EngineTest, KvFromElsewhereChangesNoBit) {
  const auto model = Model::Make(*ModelWeights::Make(TinyConfig()));
  EngineRig there(model, {.block_tokens = 16});
  const Whole whole(&there, RandomTokens(150, 5));
  const auto from = *there.arena->Layout();
  for (const uint32_t prefix : {1U, 16U, 64U, 65U, 128U, 149U}) {
    EngineRig here(model, {.block_tokens = 48});
    const auto to = *here.arena->Layout();
    KvSequence kv(here.arena.get());
    ASSERT_TRUE(kv.Reserve(prefix).ok());
    for (uint32_t token = 0; token < prefix; ++token) {
      std::vector<MutableBytes> source, target;
      ASSERT_TRUE(from.AppendParts(0, *whole.kv.Runs(token, 1), &source).ok());
      ASSERT_TRUE(to.AppendParts(0, *kv.Runs(token, 1), &target).ok());
      ASSERT_EQ(source.size(), target.size());
      for (size_t i = 0; i < source.size(); ++i)
        std::memcpy(target[i].data(), source[i].data(), source[i].size());
    }
    ASSERT_TRUE(kv.SetTokens(prefix).ok());
    const ForwardOutput output = here.Compute(&kv, std::span(whole.tokens).subspan(prefix));
    for (uint32_t i = 0; i + prefix < 150; ++i)
      ASSERT_TRUE(SameBits(output.row(i), whole.row(prefix + i))) << prefix << " " << i;
    EXPECT_TRUE(here.KvBytes(kv) == whole.bytes);
  }
}

TEST(EngineTest, ACachedBlockIsOnePieceOfMemory) {
  EngineRig rig(TinyConfig());
  KvSequence kv(rig.arena.get());
  rig.Compute(&kv, RandomTokens(32, 1), LogitsOf::kNone);
  std::vector<MutableBytes> parts;
  const auto layout = *rig.arena->Layout();
  ASSERT_TRUE(layout.AppendParts(0, {{{uint64_t{kv.blocks()[1]} * 16, 16}}}, &parts).ok());
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].size(), rig.arena->block_bytes());
  EXPECT_EQ(parts[0].data(), rig.arena->block(kv.blocks()[1]).data());
}

TEST(EngineTest, AFlippedBitOfKvChangesLogits) {
  EngineRig rig(TinyConfig());
  const Whole whole(&rig, RandomTokens(40, 9));
  std::mt19937_64 random(4);
  int changed = 0;
  for (int i = 0; i < 40; ++i) {
    KvSequence kv = *whole.kv.Fork();
    kv.Truncate(39);
    const MutableBytes block = rig.arena->block(kv.blocks()[random() % 2]);
    const size_t at = random() % block.size() | 1;  // sign, exponent or the top of the mantissa
    const auto bit = std::byte{1} << static_cast<int>(random() % 7);
    block[at] ^= bit;
    const ForwardOutput output = rig.Compute(&kv, std::span(whole.tokens).subspan(39));
    if (!SameBits(output.row(0), whole.row(39))) ++changed;
    block[at] ^= bit;
  }
  EXPECT_EQ(changed, 40);
}

TEST(EngineTest, SharedBlocksServeSeveralAndAreNotWritten) {
  EngineRig rig(TinyConfig());
  const Whole whole(&rig, RandomTokens(40, 2));
  KvSequence base(rig.arena.get());
  rig.Compute(&base, std::span(whole.tokens).first(36), LogitsOf::kNone);
  KvSequence fork = *base.Fork();
  const ForwardOutput output = rig.Compute(&fork, std::span(whole.tokens).subspan(36));
  EXPECT_TRUE(SameBits(output.logits_of(0), whole.row(39)));
  fork.Truncate(10);
  const ForwardItem item{&fork, std::span(whole.tokens).subspan(10)};
  const auto refused = rig.engine->Forward({&item, 1});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(refused.status())), HasSubstr("shared by 2"));
}

TEST(EngineTest, StopsBetweenStepsAndGoesOn) {
  EngineRig rig(TinyConfig(), {.block_tokens = 16}, {.rows_max = 8});
  const Whole whole(&rig, RandomTokens(40, 3));
  KvSequence kv(rig.arena.get());
  StopFlag stop;
  stop.Set();
  ForwardItem item{&kv, whole.tokens};
  EXPECT_EQ(rig.engine->Forward({&item, 1}, {.stop = &stop}).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(
      rig.engine->Forward({&item, 1}, {.deadline = Deadline::After(Duration(0))}).status().code(),
      StatusCode::kDeadlineExceeded);
  EXPECT_EQ(kv.tokens(), 0U);
  rig.Compute(&kv, std::span(whole.tokens).first(13), LogitsOf::kNone);
  item.tokens = std::span(whole.tokens).subspan(kv.tokens());
  const auto rest = rig.engine->Forward({&item, 1});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_TRUE(SameBits(rest->logits_of(0), whole.row(39)));
}

TEST(EngineTest, RefusesWhatCannotBe) {
  ModelConfig config = TinyConfig();
  config.positions_max = 50;
  EngineRig rig(config, {.block_tokens = 16}, {}, 3);
  KvSequence kv(rig.arena.get()), other(rig.arena.get());
  const auto code = [&](std::vector<ForwardItem> items) {
    return rig.engine->Forward(items).status().code();
  };
  const std::vector<TokenId> many = RandomTokens(51, 1), some = RandomTokens(33, 1),
                             unknown = {1, 264};
  EXPECT_EQ(code({{&kv, {}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{&kv, many}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{&kv, unknown}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{&kv, some}, {&kv, some}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{&kv, some}, {&other, some}}), StatusCode::kResourceExhausted);
  EXPECT_EQ(kv.tokens() + other.tokens(), 0U);
  config.layers = 2;
  EngineRig foreign(config);
  KvSequence strange(foreign.arena.get());
  EXPECT_EQ(code({{&strange, some}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(rig.engine->Draft({}).status().code(), StatusCode::kFailedPrecondition);
  for (const EngineOptions& options :
       {EngineOptions{.threads = 0}, EngineOptions{.rows_max = 0},
        EngineOptions{.rows_max = 1U << 20}, EngineOptions{.kernels = "abacus"}})
    EXPECT_EQ(Engine::Create(rig.model, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(EngineTest, FingerprintsTellModelsAndStorageApart) {
  const auto print = [](ModelConfig config, KvStorage storage = KvStorage::kBf16) {
    return Model::Make(*ModelWeights::Make(config))->Fingerprint(storage);
  };
  const std::string one = print(TinyConfig());
  EXPECT_EQ(one.size(), 64U);
  EXPECT_EQ(print(TinyConfig()), one);
  EXPECT_NE(print(TinyConfig(), KvStorage::kF32), one);
  ModelConfig other = TinyConfig();
  other.seed = 2;
  EXPECT_NE(print(other), one);
  other = TinyConfig();
  other.rope_base = 20000;
  EXPECT_NE(print(other), one);
}

}  // namespace
}  // namespace ems::pdc
