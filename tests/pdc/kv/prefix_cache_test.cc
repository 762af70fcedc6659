// What must hold: what one worker saves another one loads, to the bit; misses, failures and wrong
// salts cost computation and nothing else; memory that is being saved is nobody else's.
#include "pdc/kv/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using context::SavePhase;
using context::test::FakeBlockStore;
using std::chrono::seconds;
using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

constexpr uint32_t kPage = 16;

struct Worker {
  explicit Worker(context::BlockStore* store, uint32_t blocks = 96,
                  const PrefixCacheOptions& options = {}, ModelConfig config = TinyConfig())
      : rig(config, {.block_tokens = kPage}, {}, blocks),
        cache(*PrefixCache::Create(store, rig.arena.get(), *rig.model, options)) {}

  // Loads what there is, computes the rest and saves it. The logits of the last token.
  std::vector<float> Serve(std::span<const TokenId> prompt, const std::string& salt = "") {
    KvSequence kv(rig.arena.get());
    const auto hit = cache->Load(prompt, salt, &kv);
    EXPECT_TRUE(hit.ok()) << hit.status();
    cached = hit->cached_tokens;
    EXPECT_EQ(kv.tokens(), cached);
    EXPECT_EQ(hit->prompt_blocks, (prompt.size() - 1) / kPage);
    const ForwardOutput output = rig.Compute(&kv, prompt.subspan(cached), LogitsOf::kLast);
    cache->Save(prompt, salt, kv, cached, SavePhase::kPrefill);
    EXPECT_TRUE(cache->Drain(seconds(10)));
    return output.logits;
  }

  EngineRig rig;
  std::unique_ptr<PrefixCache> cache;
  uint32_t cached = 0;
};

// Puts wait until `open` is set.
void HoldPuts(FakeBlockStore* store, StopFlag* open) {
  store->SetGate([open](const std::string& operation) {
    if (operation == "put") open->WaitFor(seconds(10));
  });
}

TEST(PrefixCacheTest, WhatOneWorkerSavesAnotherLoads) {
  FakeBlockStore store;
  Worker one(&store), two(&store);
  const std::vector<TokenId> prompt = RandomTokens(100, 1);
  const std::vector<float> wanted = one.Serve(prompt);
  EXPECT_EQ(one.cached, 0U);
  EXPECT_EQ(one.cache->stats().saved_blocks, 6U);
  EXPECT_TRUE(SameBits(two.Serve(prompt), wanted));
  EXPECT_EQ(two.cached, 96U);
  EXPECT_EQ(two.cache->stats().saved_blocks, 0U);
}

TEST(PrefixCacheTest, TheLastTokenIsComputedEvenWhenAllBlocksAreThere) {
  FakeBlockStore store;
  Worker one(&store);
  const std::vector<TokenId> prompt = RandomTokens(size_t{4} * kPage, 2);
  const std::vector<float> wanted = one.Serve(prompt);
  EXPECT_EQ(one.cache->stats().saved_blocks, 4U);
  EXPECT_TRUE(SameBits(one.Serve(prompt), wanted));
  EXPECT_EQ(one.cached, 3 * kPage);
  EXPECT_EQ(one.cache->stats().existing_blocks, 1U) << "computed again, and there already";
}

TEST(PrefixCacheTest, SaltsAndModelsShareNothing) {
  FakeBlockStore store;
  Worker one(&store);
  const std::vector<TokenId> prompt = RandomTokens(50, 3);
  const std::vector<float> wanted = one.Serve(prompt, "tenant a");
  EXPECT_TRUE(SameBits(one.Serve(prompt, "tenant b"), wanted));
  EXPECT_EQ(one.cached, 0U);
  EXPECT_TRUE(SameBits(one.Serve(prompt, "tenant a"), wanted));
  EXPECT_EQ(one.cached, 48U);
  ModelConfig other = TinyConfig();
  other.seed = 77;
  Worker stranger(&store, 96, {}, other);
  stranger.Serve(prompt, "tenant a");
  EXPECT_EQ(stranger.cached, 0U);
}

TEST(PrefixCacheTest, AHoleInThePrefixIsComputedFromThereOn) {
  FakeBlockStore store;
  Worker one(&store);
  const std::vector<TokenId> prompt = RandomTokens(90, 4);
  const std::vector<float> wanted = one.Serve(prompt);
  const std::vector<TokenId> start(prompt.begin(), prompt.begin() + ptrdiff_t{2} * kPage);
  // The keys of the first two blocks are those of a prompt that ends there.
  FakeBlockStore first_two;
  Worker two(&first_two);
  two.Serve(start);
  EXPECT_TRUE(SameBits(two.Serve(prompt), wanted));
  EXPECT_EQ(two.cached, 2 * kPage);
}

TEST(PrefixCacheTest, APolicySaysWhatIsSaved) {
  FakeBlockStore store;
  Worker one(&store);
  KvSequence kv(one.rig.arena.get());
  const std::vector<TokenId> tokens = RandomTokens(48, 5);
  one.rig.Compute(&kv, tokens, LogitsOf::kNone);
  one.cache->Save(tokens, "", kv, 0, SavePhase::kDecode);
  ASSERT_TRUE(one.cache->Drain(seconds(10)));
  EXPECT_EQ(one.cache->stats().saved_blocks, 0U);
  PrefixCacheOptions all;
  all.policy = context::SavePolicy::kAll;
  Worker two(&store, 96, all);
  KvSequence other(two.rig.arena.get());
  two.rig.Compute(&other, tokens, LogitsOf::kNone);
  two.cache->Save(tokens, "", other, 17, SavePhase::kDecode);
  ASSERT_TRUE(two.cache->Drain(seconds(10)));
  EXPECT_EQ(two.cache->stats().saved_blocks, 2U) << "from the block of token 17 on";
}

TEST(PrefixCacheTest, BlocksThatAreBeingSavedAreHeld) {
  FakeBlockStore store;
  StopFlag open;
  HoldPuts(&store, &open);
  Worker one(&store, 4);
  {
    KvSequence kv(one.rig.arena.get());
    const std::vector<TokenId> tokens = RandomTokens(48, 6);
    one.rig.Compute(&kv, tokens, LogitsOf::kNone);
    one.cache->Save(tokens, "", kv, 0, SavePhase::kPrefill);
  }
  EXPECT_EQ(one.rig.arena->pool().free_blocks(), 1U)
      << "the sequence has gone, its blocks have not";
  KvSequence next(one.rig.arena.get());
  const auto hit = one.cache->Load(RandomTokens(32, 7), "", &next);
  EXPECT_EQ(hit.status().code(), StatusCode::kResourceExhausted);
  open.Set();
  ASSERT_TRUE(one.cache->Drain(seconds(10)));
  EXPECT_EQ(one.rig.arena->pool().free_blocks(), 4U);
}

TEST(PrefixCacheTest, SavesBeyondTheBoundAreLeftOutAndCounted) {
  FakeBlockStore store;
  StopFlag open;
  HoldPuts(&store, &open);
  PrefixCacheOptions few;
  few.saves_max = 1;
  Worker one(&store, 96, few);
  KvSequence kv(one.rig.arena.get());
  const std::vector<TokenId> tokens = RandomTokens(48, 8);
  one.rig.Compute(&kv, tokens, LogitsOf::kNone);
  one.cache->Save(tokens, "", kv, 0, SavePhase::kPrefill);
  one.cache->Save(tokens, "other", kv, 0, SavePhase::kPrefill);
  EXPECT_FALSE(one.cache->Drain(std::chrono::milliseconds(1)));
  open.Set();
  ASSERT_TRUE(one.cache->Drain(seconds(10)));
  EXPECT_EQ(one.cache->stats().saved_blocks, 3U);
  EXPECT_EQ(one.cache->stats().saves_left_out, 1U);
}

TEST(PrefixCacheTest, AStoreThatFailsCostsComputationAlone) {
  FakeBlockStore store;
  Worker one(&store);
  const std::vector<TokenId> prompt = RandomTokens(80, 10);
  const std::vector<float> wanted = one.Serve(prompt);
  for (const auto& call : store.TakeCalls()) {
    if (call.operation != "put") continue;
    for (const std::string& key : call.keys) store.FailKey(key, StatusCode::kUnavailable);
  }
  EXPECT_TRUE(SameBits(one.Serve(prompt), wanted));
  EXPECT_EQ(one.cached, 0U);
  EXPECT_GT(one.cache->stats().failed_blocks, 0U);
  store.RefuseSubmissions();
  one.Serve(RandomTokens(40, 11));
  EXPECT_EQ(one.rig.arena->pool().free_blocks(), 96U) << "nothing stays held";
}

TEST(PrefixCacheTest, BadInputIsRefused) {
  FakeBlockStore store;
  Worker one(&store);
  KvSequence kv(one.rig.arena.get());
  EXPECT_EQ(one.cache->Load({}, "", &kv).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(one.cache->Load(RandomTokens(9, 9), std::string(100'000, 's'), &kv).status().code(),
            StatusCode::kInvalidArgument);
  EngineRig small(TinyConfig(), {.block_tokens = 8});
  EXPECT_EQ(PrefixCache::Create(&store, small.arena.get(), *small.model, {}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
