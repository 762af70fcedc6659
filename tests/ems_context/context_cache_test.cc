#include "ems_context/context_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/ems_context/fake_block_store.h"

namespace ems::context {
namespace {

using ::testing::ElementsAre;
using Keys = std::vector<std::string>;

constexpr size_t kBlockBytes = 8;

std::string ValueOf(const std::string& key) {
  return (key + std::string(kBlockBytes, '.')).substr(0, kBlockBytes);
}

// Blocks in the caller's memory.
struct Blocks {
  explicit Blocks(size_t count) : memory(count, std::string(kBlockBytes, '?')) {
    for (std::string& block : memory) into.push_back(std::as_writable_bytes(std::span(block)));
  }
  explicit Blocks(const Keys& keys) {
    for (const std::string& key : keys) memory.push_back(ValueOf(key));
    for (const std::string& block : memory) values.push_back(std::string_view(block));
  }
  Blocks(const Blocks&) = delete;
  std::vector<std::string> memory;
  std::vector<MutableBuffers> into;
  std::vector<ConstBuffers> values;
};

class ContextCacheTest : public ::testing::Test {
 protected:
  void Store(const Keys& keys) {
    for (const std::string& key : keys) store_.Set(key, ValueOf(key));
  }
  test::FakeBlockStore store_;
  ContextCache cache_{&store_, {.block_tokens = 16}};
};

TEST_F(ContextCacheTest, LookupCountsLeadingBlocksInOneCall) {
  Store({"a", "b", "d"});
  const LookupResult found = cache_.Lookup(Keys{"a", "b", "c", "d"});
  EXPECT_EQ(found.leading_blocks, 2u);
  ASSERT_EQ(found.present.size(), 4u);
  EXPECT_TRUE(*found.present[3]);
  const auto calls = store_.TakeCalls();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].operation, "exists");
  EXPECT_TRUE(calls[0].touch);
  EXPECT_THAT(calls[0].keys, ElementsAre("d", "c", "b", "a"));  // roots are touched last
}

TEST_F(ContextCacheTest, LookupOfTokensGivesTheKeysToLoadAndSave) {
  const auto hasher = BlockHasher::Make({}, HashKind::kSha256, 16);
  ASSERT_TRUE(hasher.ok());
  const std::vector<int32_t> tokens(40, 7);
  const Keys keys = hasher->HashTokens(tokens);
  Store({keys[0]});
  const LookupResult found = cache_.Lookup(*hasher, tokens);
  EXPECT_EQ(found.keys, keys);
  EXPECT_EQ(found.leading_blocks, 1u);
  const ContextStats stats = cache_.stats();
  EXPECT_EQ(stats.lookup_requested_tokens, 40u);
  EXPECT_EQ(stats.lookup_requested_blocks, 2u);
  EXPECT_EQ(stats.lookup_hit_tokens, 16u);
  EXPECT_EQ(stats.lookup_hit_blocks, 1u);
}

TEST_F(ContextCacheTest, ACancelledCallLeavesItsFurtherBatches) {
  ContextCache one_by_one(&store_, {.batch = {.items_max = 1}});
  Store({"a", "b", "c"});
  Blocks into(3);
  int asked = 0;
  CallOptions options;
  options.cancelled = [&] { return ++asked > 2; };
  const LoadResult loaded = one_by_one.Load(Keys{"a", "b", "c"}, into.into, options);
  EXPECT_EQ(loaded.leading_blocks, 2u);
  EXPECT_EQ(loaded.blocks[2].status().code(), StatusCode::kCancelled);
  EXPECT_EQ(into.memory[2], std::string(kBlockBytes, '?'));
  asked = 2;
  Blocks values(Keys{"d"});
  const SaveResult saved = one_by_one.Save(Keys{"d"}, values.values, options);
  EXPECT_EQ(saved.blocks[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(store_.Get("d"), "");
}

TEST_F(ContextCacheTest, AServerThatDoesNotAnswerIsAMiss) {
  Store({"a", "b", "c"});
  store_.FailKey("b", StatusCode::kUnavailable);
  const LookupResult found = cache_.Lookup(Keys{"a", "b", "c"});
  EXPECT_EQ(found.leading_blocks, 1u);
  EXPECT_EQ(found.present[1].status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(cache_.stats().failed_blocks, 1u);
}

TEST_F(ContextCacheTest, LoadDeliversBlocksAndCountsTheLeadingOnes) {
  Store({"a", "b", "d"});
  Blocks blocks(4);
  const LoadResult loaded = cache_.Load(Keys{"a", "b", "c", "d"}, blocks.into);
  EXPECT_EQ(loaded.leading_blocks, 2u);
  ASSERT_EQ(loaded.blocks.size(), 4u);
  EXPECT_EQ(loaded.blocks[2].status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*loaded.blocks[3], kBlockBytes);
  EXPECT_EQ(blocks.memory[1], ValueOf("b"));
  EXPECT_EQ(blocks.memory[3], ValueOf("d"));
  EXPECT_THAT(store_.TakeCalls()[0].keys, ElementsAre("d", "c", "b", "a"));
  EXPECT_EQ(cache_.stats().loaded_blocks, 3u);
  EXPECT_EQ(cache_.stats().loaded_bytes, 3 * kBlockBytes);
}

TEST_F(ContextCacheTest, ABlockOfAnotherLengthIsAMiss) {
  Store({"a"});
  store_.Set("short", "1234567");
  store_.Set("long", "123456789");
  Blocks blocks(3);
  const LoadResult loaded = cache_.Load(Keys{"a", "short", "long"}, blocks.into);
  EXPECT_EQ(loaded.leading_blocks, 1u);
  EXPECT_EQ(loaded.blocks[1].status().code(), StatusCode::kNotFound);
  EXPECT_EQ(loaded.blocks[2].status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache_.stats().size_mismatches, 2u);
}

TEST_F(ContextCacheTest, LoadScattersABlockOverSeveralParts) {
  store_.Set("a", "12345678");
  std::string left(3, '?');
  std::string right(5, '?');
  const std::vector<MutableBytes> parts = {std::as_writable_bytes(std::span(left)),
                                           std::as_writable_bytes(std::span(right))};
  const std::vector<MutableBuffers> into = {MutableBuffers(std::span<const MutableBytes>(parts))};
  EXPECT_EQ(cache_.Load(Keys{"a"}, into).leading_blocks, 1u);
  EXPECT_EQ(left + right, "12345678");
}

TEST_F(ContextCacheTest, SavePutsOnlyWhatIsMissing) {
  const Keys keys = {"a", "b", "c", "d"};
  Store({"a", "c"});
  const Blocks blocks(keys);
  const SaveResult saved = cache_.Save(keys, blocks.values);
  EXPECT_EQ(saved.stored_blocks, 2u);
  EXPECT_EQ(saved.existing_blocks, 2u);
  for (const Status& status : saved.blocks) EXPECT_TRUE(status.ok());
  const auto calls = store_.TakeCalls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].operation, "exists");
  EXPECT_TRUE(calls[0].touch);
  EXPECT_EQ(calls[1].operation, "put");
  EXPECT_THAT(calls[1].keys, ElementsAre("d", "b"));  // tail-first
  const ContextStats stats = cache_.stats();
  EXPECT_EQ(stats.saved_bytes, 2 * kBlockBytes);
  EXPECT_EQ(stats.deduped_blocks, 2u);
  EXPECT_EQ(stats.deduped_bytes, 2 * kBlockBytes);
}

TEST_F(ContextCacheTest, SavingAgainMovesNoBytes) {
  const Keys keys = {"a", "b"};
  const Blocks blocks(keys);
  cache_.Save(keys, blocks.values);
  store_.TakeCalls();
  const SaveResult again = cache_.Save(keys, blocks.values);
  EXPECT_EQ(again.existing_blocks, 2u);
  for (const auto& call : store_.TakeCalls()) EXPECT_NE(call.operation, "put");
  EXPECT_EQ(cache_.stats().saved_blocks, 2u);
}

TEST_F(ContextCacheTest, SaveReportsEachBlockThatFailed) {
  const Keys keys = {"a", "b", "c"};
  store_.FailKey("a", StatusCode::kUnavailable);  // cannot even be looked up
  store_.FailPut("b", StatusCode::kResourceExhausted);
  const Blocks blocks(keys);
  const SaveResult saved = cache_.Save(keys, blocks.values);
  EXPECT_EQ(saved.blocks[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(saved.blocks[1].code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(saved.blocks[2].ok());
  EXPECT_EQ(saved.stored_blocks, 1u);
  EXPECT_EQ(cache_.stats().failed_blocks, 2u);
  EXPECT_THAT(store_.TakeCalls()[1].keys, ElementsAre("c", "b"));  // "a" is not tried
  EXPECT_EQ(cache_.Lookup(keys).leading_blocks, 0u);
}

TEST_F(ContextCacheTest, ABlockThatAnotherWriterStoredMeanwhileIsASuccess) {
  store_.FailPut("a", StatusCode::kAlreadyExists);
  const Blocks blocks(Keys{"a"});
  const SaveResult saved = cache_.Save(Keys{"a"}, blocks.values);
  EXPECT_TRUE(saved.blocks[0].ok());
  EXPECT_EQ(saved.existing_blocks, 1u);
  EXPECT_EQ(saved.stored_blocks, 0u);
  EXPECT_EQ(cache_.stats().conflicts, 1u);
}

TEST_F(ContextCacheTest, SaveOfSeveralBatchesEndsWithATouchFromTailToRoot) {
  ContextCache cache(&store_, {.batch = {.bytes_max = 2 * kBlockBytes, .items_max = 16}});
  const Keys keys = {"a", "b", "c"};
  const Blocks blocks(keys);
  EXPECT_EQ(cache.Save(keys, blocks.values).stored_blocks, 3u);
  const auto calls = store_.TakeCalls();
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_THAT(calls[1].keys, ElementsAre("b", "a"));
  EXPECT_THAT(calls[2].keys, ElementsAre("c"));
  EXPECT_EQ(calls[3].operation, "exists");
  EXPECT_THAT(calls[3].keys, ElementsAre("c", "b", "a"));
}

TEST_F(ContextCacheTest, ResultListsAreCompleteWhenTheTimeIsOver) {
  Store({"a", "b"});
  const CallOptions over{.timeout = Duration(1)};
  const Keys keys = {"a", "b"};
  Blocks into(2);
  const Blocks values(keys);
  EXPECT_EQ(cache_.Lookup(keys, over).present.size(), 2u);
  EXPECT_EQ(cache_.Lookup(keys, over).leading_blocks, 0u);
  const LoadResult loaded = cache_.Load(keys, into.into, over);
  ASSERT_EQ(loaded.blocks.size(), 2u);
  EXPECT_EQ(loaded.blocks[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cache_.Save(keys, values.values, over).blocks[1].code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(store_.TakeCalls().empty());
}

TEST_F(ContextCacheTest, KeysAndBuffersMustPair) {
  Blocks into(1);
  const LoadResult loaded = cache_.Load(Keys{"a", "b"}, into.into);
  ASSERT_EQ(loaded.blocks.size(), 2u);
  EXPECT_EQ(loaded.blocks[1].status().code(), StatusCode::kInvalidArgument);
  const SaveResult saved = cache_.Save(Keys{"a", "b"}, {});
  ASSERT_EQ(saved.blocks.size(), 2u);
  EXPECT_EQ(saved.blocks[0].code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(store_.TakeCalls().empty());
}

TEST_F(ContextCacheTest, NoKeysNeedNoCall) {
  EXPECT_EQ(cache_.Lookup(Keys{}).leading_blocks, 0u);
  EXPECT_TRUE(cache_.Load(Keys{}, {}).blocks.empty());
  EXPECT_TRUE(cache_.Save(Keys{}, {}).blocks.empty());
  EXPECT_TRUE(store_.TakeCalls().empty());
}

TEST_F(ContextCacheTest, DeadlinesGrowWithBytesUpToABound) {
  using std::chrono::seconds;
  EXPECT_EQ(cache_.TimeoutOf(0, {}), seconds(1));
  EXPECT_EQ(cache_.TimeoutOf(200'000'000, {}), seconds(3));
  EXPECT_EQ(cache_.TimeoutOf(100'000'000'000, {}), seconds(30));
  EXPECT_EQ(cache_.TimeoutOf(200'000'000, {.timeout = seconds(2)}), seconds(2));
}

TEST_F(ContextCacheTest, AsyncCallsDoWhatTheSyncOnesDo) {
  const Keys keys = {"a", "b"};
  const Blocks values(keys);
  EXPECT_EQ(cache_.SaveAsync(keys, values.values).get().stored_blocks, 2u);
  EXPECT_EQ(cache_.LookupAsync(keys).get().leading_blocks, 2u);
  Blocks blocks(2);
  EXPECT_EQ(cache_.LoadAsync(keys, blocks.into).get().leading_blocks, 2u);
  EXPECT_EQ(blocks.memory[0], ValueOf("a"));
  EXPECT_EQ(cache_.stats().lookup_hit_tokens, 32u);
}

TEST_F(ContextCacheTest, AnAsyncCallThatFindsNoRoomFailsAtOnce) {
  store_.RefuseSubmissions();
  Blocks blocks(2);
  bool called = false;
  cache_.LoadAsync(Keys{"a", "b"}, blocks.into, {}, [&](LoadResult loaded) {
    called = true;
    ASSERT_EQ(loaded.blocks.size(), 2u);
    EXPECT_EQ(loaded.blocks[0].status().code(), StatusCode::kResourceExhausted);
  });
  EXPECT_TRUE(called);
  EXPECT_EQ(cache_.LookupAsync(Keys{"a"}).get().present[0].status().code(),
            StatusCode::kResourceExhausted);
  const Blocks values(Keys{"a"});
  EXPECT_EQ(cache_.SaveAsync(Keys{"a"}, values.values).get().blocks[0].code(),
            StatusCode::kResourceExhausted);
}

// What must hold: nobody touches a caller's buffers once the cache is gone.
TEST_F(ContextCacheTest, DestructionWaitsForAsyncCalls) {
  const Keys keys = {"a", "b", "c"};
  Store(keys);
  std::atomic<int> done{0};
  Blocks blocks(3);
  {
    auto cache = std::make_unique<ContextCache>(&store_);
    for (int i = 0; i < 20; ++i)
      cache->LookupAsync(keys, {}, [&](LookupResult) { done.fetch_add(1); });
    cache->LoadAsync(keys, blocks.into, {}, [&](LoadResult) { done.fetch_add(1); });
  }
  EXPECT_EQ(done.load(), 21);
  EXPECT_EQ(blocks.memory[2], ValueOf("c"));
}

}  // namespace
}  // namespace ems::context
