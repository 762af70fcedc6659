// What must hold: blocks that one engine saves through ems_context serve another one, with other
// pages: what it computes after them is the same to the bit; a changed byte shows, and another
// model finds nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ems_context/block_hash.h"
#include "ems_context/context_cache.h"
#include "ems_context/paged_cache.h"
#include "tests/ems_context/fake_block_store.h"
#include "tests/pdc/engine/engine_rig.h"

namespace ems::pdc {
namespace {

using context::test::FakeBlockStore;
using test::EngineRig;
using test::RandomTokens;
using test::SameBits;
using test::TinyConfig;

constexpr uint32_t kBlockTokens = 16;

// An engine with a door to the pool.
struct Worker {
  Worker(FakeBlockStore* store, const ModelConfig& config, uint32_t page)
      : rig(config, {.block_tokens = page}),
        cache(store),
        paged(&cache, store, *rig.arena->Layout()),
        hasher(*context::BlockHasher::Make(paged.DomainFor(Domain()), context::HashKind::kSha256,
                                           kBlockTokens)) {}

  context::KeyDomain Domain() const {
    context::KeyDomain domain;
    domain.model = rig.model->Fingerprint(KvStorage::kBf16);
    domain.dtype = "bf16";
    return domain;
  }
  std::vector<context::PagedBlock> BlocksOf(const KvSequence& kv,
                                            std::span<const TokenId> tokens) const {
    const std::vector<int32_t> ids(tokens.begin(), tokens.end());
    std::vector<context::PagedBlock> blocks;
    for (std::string& key : hasher.HashTokens(ids)) {
      const auto first = static_cast<uint32_t>(blocks.size()) * kBlockTokens;
      blocks.push_back({std::move(key), {*kv.Runs(first, kBlockTokens)}});
    }
    return blocks;
  }

  EngineRig rig;
  context::ContextCache cache;
  context::PagedCache paged;
  context::BlockHasher hasher;
};

TEST(EngineContextTest, SavedBlocksServeAnotherEngine) {
  FakeBlockStore store;
  Worker one(&store, TinyConfig(), 16), two(&store, TinyConfig(), 24);
  const std::vector<TokenId> prompt = RandomTokens(75, 6);
  KvSequence computed(one.rig.arena.get());
  const ForwardOutput wanted = one.rig.Compute(&computed, prompt, LogitsOf::kLast);
  const auto saved = one.paged.Save(one.BlocksOf(computed, prompt), context::SavePhase::kPrefill);
  ASSERT_EQ(saved.stored_blocks, 4U);

  const auto serve = [&](Worker* worker, size_t* loaded) {
    KvSequence kv(worker->rig.arena.get());
    EXPECT_TRUE(kv.Reserve(75).ok());
    const auto blocks = worker->BlocksOf(kv, prompt);
    *loaded = worker->paged.Load(blocks).leading_blocks;
    EXPECT_TRUE(kv.SetTokens(static_cast<uint32_t>(*loaded) * kBlockTokens).ok());
    ForwardOutput output =
        worker->rig.Compute(&kv, std::span(prompt).subspan(kv.tokens()), LogitsOf::kLast);
    // What it computed itself are the bytes that are there already.
    for (const Status& block : worker->paged.Save(blocks, context::SavePhase::kPrefill).blocks)
      EXPECT_TRUE(block.ok()) << block;
    return output;
  };
  size_t loaded = 0;
  EXPECT_TRUE(SameBits(serve(&two, &loaded).logits, wanted.logits));
  EXPECT_EQ(loaded, 4U);

  // In part: the third block is gone, so the rest is computed, and saved as it was.
  const std::string third = two.BlocksOf(computed, prompt)[2].key, bytes = store.Get(third);
  ASSERT_FALSE(bytes.empty());
  store.Erase(third);
  EXPECT_TRUE(SameBits(serve(&two, &loaded).logits, wanted.logits));
  EXPECT_EQ(loaded, 2U);
  EXPECT_TRUE(store.Get(third) == bytes);

  // A store that gives wrong bytes shows: this comparison can fail.
  std::string wrong = bytes;
  wrong[101] = static_cast<char>(wrong[101] ^ 0x10);
  store.Set(third, wrong);
  EXPECT_FALSE(SameBits(serve(&two, &loaded).logits, wanted.logits));

  ModelConfig other = TinyConfig();
  other.seed = 2;
  Worker stranger(&store, other, 16);
  serve(&stranger, &loaded);
  EXPECT_EQ(loaded, 0U);
}

}  // namespace
}  // namespace ems::pdc
