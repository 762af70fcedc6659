// What must hold: an answer is the same alone, in any batch, with and without guesses, right or
// wrong, and after its KV went elsewhere; it ends where it should.
#include "pdc/engine/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using test::EngineRig;
using test::RandomTokens;
using test::TinyConfig;
using ::testing::ElementsAreArray;

ModelConfig MtpConfig() {
  ModelConfig config = TinyConfig();
  config.mtp = true;
  return config;
}

GenerationOptions Options(uint32_t tokens_max, bool draft, float temperature = 0) {
  GenerationOptions options;
  options.tokens_max = tokens_max;
  options.stop_at_end = false;
  options.draft = draft;
  options.sampler = {.temperature = temperature, .top_p = 0.9F, .seed = 77};
  return options;
}

std::vector<TokenId> Answer(EngineRig* rig, const std::vector<TokenId>& prompt,
                            const GenerationOptions& options) {
  Generation generation(KvSequence(rig->arena.get()), prompt, options);
  EXPECT_TRUE(Prefill(rig->engine.get(), &generation).ok());
  Generation* const batch[] = {&generation};
  while (generation.finished() == FinishReason::kNone)
    EXPECT_TRUE(DecodeStep(rig->engine.get(), batch).ok());
  EXPECT_EQ(generation.kv().tokens() + 1, generation.tokens().size());
  return {generation.answer().begin(), generation.answer().end()};
}

TEST(GenerationTest, MtpGivesThePlainAnswer) {
  EngineRig rig(MtpConfig());
  for (const float temperature : {0.0F, 0.8F}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const std::vector<TokenId> prompt = RandomTokens(10 + 13 * seed, seed);
      EXPECT_THAT(Answer(&rig, prompt, Options(60, true, temperature)),
                  ElementsAreArray(Answer(&rig, prompt, Options(60, false, temperature))));
    }
  }
}

// Right guesses, wrong ones and none, mixed at random: two tokens a step, or one; the same answer.
TEST(GenerationTest, GuessesChangeStepsAndNotTheAnswer) {
  EngineRig rig(TinyConfig());
  const std::vector<TokenId> prompt = RandomTokens(30, 8);
  for (const float temperature : {0.0F, 0.8F}) {
    const GenerationOptions options = Options(50, true, temperature);
    const std::vector<TokenId> plain = Answer(&rig, prompt, options);
    Generation generation(KvSequence(rig.arena.get()), prompt, options);
    ASSERT_TRUE(Prefill(rig.engine.get(), &generation).ok());
    Generation* const batch[] = {&generation};
    std::mt19937_64 random(3);
    size_t steps = 0;
    for (; generation.finished() == FinishReason::kNone; ++steps) {
      const size_t next = generation.answer().size();
      const uint64_t kind = random() % 3;
      if (kind == 0) generation.Suggest(plain[next]);
      if (kind == 1) generation.Suggest((plain[next] + 1) % 264);
      ASSERT_TRUE(DecodeStep(rig.engine.get(), batch).ok());
    }
    EXPECT_THAT(generation.answer(), ElementsAreArray(plain));
    EXPECT_GT(generation.drafts_right(), 3U);
    EXPECT_GT(generation.drafts(), generation.drafts_right() + 3);
    EXPECT_EQ(steps + generation.drafts_right(), 49U);
  }
}

TEST(GenerationTest, ABatchGivesEachItsOwnAnswer) {
  EngineRig rig(MtpConfig());
  std::vector<std::vector<TokenId>> plain;
  std::vector<Generation> generations;
  std::vector<GenerationOptions> options;
  for (uint32_t i = 0; i < 6; ++i) {
    const std::vector<TokenId> prompt = RandomTokens(3 + 17 * i, i);
    options.push_back(Options(10 + 7 * i, i % 2 == 0, i % 3 == 0 ? 0.7F : 0.0F));
    plain.push_back(Answer(&rig, prompt, options.back()));
    generations.emplace_back(KvSequence(rig.arena.get()), prompt, options.back());
  }
  // Each joins while others are under way.
  size_t joined = 0;
  for (bool more = true; more;) {
    if (joined < generations.size()) {
      ASSERT_TRUE(Prefill(rig.engine.get(), &generations[joined++]).ok());
    }
    std::vector<Generation*> batch;
    for (size_t i = 0; i < joined; ++i)
      if (generations[i].finished() == FinishReason::kNone) batch.push_back(&generations[i]);
    if (!batch.empty()) {
      ASSERT_TRUE(DecodeStep(rig.engine.get(), batch).ok());
    }
    more = joined < generations.size() || !batch.empty();
  }
  for (size_t i = 0; i < generations.size(); ++i)
    EXPECT_THAT(generations[i].answer(), ElementsAreArray(plain[i])) << i;
}

TEST(GenerationTest, DecodeElsewhereGoesOnAsHere) {
  EngineRig here(TinyConfig()), there(here.model, {.block_tokens = 16});
  const std::vector<TokenId> prompt = RandomTokens(50, 1);
  const std::vector<TokenId> plain = Answer(&here, prompt, Options(20, false));
  KvSequence kv(there.arena.get());
  there.Compute(&kv, prompt, LogitsOf::kNone);
  Generation generation(std::move(kv), prompt, Options(20, false));
  Generation* const batch[] = {&generation};
  EXPECT_EQ(DecodeStep(there.engine.get(), batch).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(TakeOver(there.engine.get(), &generation, plain[0]).ok());
  while (generation.finished() == FinishReason::kNone)
    ASSERT_TRUE(DecodeStep(there.engine.get(), batch).ok());
  EXPECT_THAT(generation.answer(), ElementsAreArray(plain));
}

TEST(GenerationTest, AWhollyCachedPromptComputesItsLastToken) {
  EngineRig rig(TinyConfig());
  const std::vector<TokenId> prompt = RandomTokens(32, 4);
  const std::vector<TokenId> plain = Answer(&rig, prompt, Options(5, false));
  KvSequence kv(rig.arena.get());
  rig.Compute(&kv, prompt, LogitsOf::kNone);
  Generation generation(std::move(kv), prompt, Options(5, false));
  ASSERT_TRUE(Prefill(rig.engine.get(), &generation).ok());
  EXPECT_EQ(generation.answer()[0], plain[0]);
}

TEST(GenerationTest, EndsAtTheEndTokenAtItsLengthAndAtTheLastPosition) {
  ModelConfig config = TinyConfig();
  config.positions_max = 40;
  EngineRig rig(config);
  const std::vector<TokenId> prompt = RandomTokens(30, 4);
  EXPECT_EQ(Answer(&rig, prompt, Options(1, false)).size(), 1U);
  EXPECT_EQ(Answer(&rig, prompt, Options(100, false)).size(), 11U);  // the last one needs no KV
  GenerationOptions hot = Options(1000, false, 100);
  hot.stop_at_end = true;
  hot.sampler.top_p = 1;
  config.positions_max = 4000;
  EngineRig large(config, {.block_tokens = 16}, {}, 260);
  Generation generation(KvSequence(large.arena.get()), prompt, hot);
  ASSERT_TRUE(Prefill(large.engine.get(), &generation).ok());
  Generation* const batch[] = {&generation};
  while (generation.finished() == FinishReason::kNone)
    ASSERT_TRUE(DecodeStep(large.engine.get(), batch).ok());
  EXPECT_EQ(generation.finished(), FinishReason::kStop);
  EXPECT_THAT((std::vector<TokenId>{kEndToken, kTurnEndToken}),
              ::testing::Contains(generation.answer().back()));
}

TEST(GenerationTest, RefusesWhatCannotBe) {
  EngineRig rig(TinyConfig(), {.block_tokens = 16}, {}, 2);
  const auto refused = [&](std::vector<TokenId> prompt, GenerationOptions options) {
    Generation generation(KvSequence(rig.arena.get()), std::move(prompt), options);
    return Prefill(rig.engine.get(), &generation).code();
  };
  EXPECT_EQ(refused({}, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({1}, {.tokens_max = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({1}, {.sampler = {.temperature = -1}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({1}, {.sampler = {.top_p = 0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(RandomTokens(33, 1), {}), StatusCode::kResourceExhausted);
  EXPECT_EQ(rig.arena->pool().free_blocks(), 2U);
  // Full in the middle of an answer: an error, and what is there stays.
  Generation generation(KvSequence(rig.arena.get()), RandomTokens(31, 1), Options(10, false));
  ASSERT_TRUE(Prefill(rig.engine.get(), &generation).ok());
  Generation* const batch[] = {&generation};
  ASSERT_TRUE(DecodeStep(rig.engine.get(), batch).ok());
  EXPECT_EQ(DecodeStep(rig.engine.get(), batch).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(generation.answer().size(), 2U);
  EXPECT_EQ(generation.kv().tokens(), 32U);
}

}  // namespace
}  // namespace ems::pdc
