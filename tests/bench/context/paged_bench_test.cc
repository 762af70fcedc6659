// What must hold: every lane is measured and every loaded byte compared; wrong bytes and missing
// blocks end the run with a reason.
#include "bench/context/paged_bench.h"

#include <gtest/gtest.h>

#include "tests/ems_context/fake_block_store.h"

namespace ems::bench {
namespace {

using context::test::FakeBlockStore;
using context::test::StoreCall;

PagedSettings Small() {
  PagedSettings settings;
  settings.layers = 3;
  settings.latent = 8;
  settings.rope = 2;
  settings.block_tokens = 16;
  settings.blocks = 4;
  settings.rounds = 2;
  settings.lookup_blocks = 10;
  settings.submits = 32;
  return settings;
}
constexpr uint64_t kBlockBytes = uint64_t{3} * 16 * (8 + 2) * 2;

// The key of one of the blocks that the bench has saved; empty: none yet.
std::string SavedKey(FakeBlockStore* store) {
  for (const StoreCall& call : store->TakeCalls()) {
    if (call.operation == "put") return call.keys[0];
  }
  return "";
}

Result<PagedResult> RunOn(FakeBlockStore* store) {
  auto bench = PagedBench::Make(Small(), store);
  EXPECT_TRUE(bench.ok()) << bench.status();
  return (*bench)->Run();
}

TEST(PagedBenchTest, MeasuresEveryLaneAndComparesEveryByte) {
  FakeBlockStore store;
  const auto result = RunOn(&store);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->block_bytes, kBlockBytes);
  EXPECT_EQ(result->load_checked, 4 * kBlockBytes * (2 + 2 * 2))
      << "loads, layers with and without";
  EXPECT_GT(result->memcpy_gbps, 0);
  EXPECT_GT(result->load_gbps, 0);
  EXPECT_GT(result->save_gbps, 0);
  EXPECT_GT(result->layers_load_ms, 0);
  EXPECT_GE(result->layers_ratio, 0.5);
  EXPECT_EQ(result->lookup_blocks, 10U);
  EXPECT_EQ(result->lookup.count(), 200U);
  EXPECT_EQ(result->submit.count(), 32U);
  EXPECT_EQ(result->submit_paused.count(), 0U);
}

TEST(PagedBenchTest, AWrongByteEndsTheRun) {
  FakeBlockStore store;
  store.SetGate([&](const std::string& operation) {
    if (operation != "get") return;
    const std::string key = SavedKey(&store);
    if (key.empty()) return;
    std::string value = store.Get(key);
    value.back() ^= 1;
    store.Set(key, value);
  });
  EXPECT_EQ(RunOn(&store).status().code(), StatusCode::kDataLoss);
}

TEST(PagedBenchTest, AMissingBlockEndsTheRun) {
  for (const std::string lane : {"get", "range"}) {
    FakeBlockStore store;
    std::string saved;
    store.SetGate([&](const std::string& operation) {
      if (saved.empty()) saved = SavedKey(&store);
      if (operation == lane) store.Erase(saved);
    });
    EXPECT_EQ(RunOn(&store).status().code(), StatusCode::kNotFound) << lane;
  }
}

TEST(PagedBenchTest, ABlockThatIsMissingWhenSubmitsAreTimedEndsTheRun) {
  FakeBlockStore store;
  std::string saved;
  bool has_loaded = false;
  store.SetGate([&](const std::string& operation) {
    if (saved.empty()) saved = SavedKey(&store);
    if (operation == "range") has_loaded = true;
    // Between the loads and the submits the blocks for look-ups are saved.
    if (operation == "put" && has_loaded) store.Erase(saved);
  });
  EXPECT_EQ(RunOn(&store).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ems::bench
