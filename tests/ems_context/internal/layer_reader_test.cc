#include "ems_context/internal/layer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ems_context/fake_block_store.h"
#include "tests/ems_context/paged_memory.h"

namespace ems::context {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class LayerReaderTest : public ::testing::Test {
 protected:
  LayerReaderTest() {
    layers_.resize(6);
    for (size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].tensors = {memory_.Add({1, 8}), memory_.Add({2, 8})};
      layers_[i].group = i % 3 == 2 ? 1 : 0;
    }
    layout_ = *KvLayout::Make(layers_);
    memory_.Fill(3);
  }
  std::string Bytes(const PagedBlock& block) {
    std::string bytes;
    for (uint32_t group = 0; group < 2; ++group) {
      std::vector<int64_t> slots;
      for (const SlotRun& run : block.runs[group])
        for (uint32_t t = 0; t < run.tokens; ++t)
          slots.push_back(static_cast<int64_t>(run.start_slot + t));
      bytes += test::SlowGather(layers_, group, slots);
    }
    return bytes;
  }

  test::PagedMemory memory_{8, 16};
  std::vector<KvLayer> layers_;
  std::optional<KvLayout> layout_;
  test::FakeBlockStore store_;
};

TEST_F(LayerReaderTest, ReadsHaveAtLeastTheBytesAskedForAndWholeLayers) {
  const std::vector<PagedBlock> blocks = {{"a", {{{0, 4}}, {}}}, {"b", {{{16, 16}}, {{0, 16}}}}};
  constexpr uint64_t kLayer = uint64_t{16} * 3 * 16;  // of the larger block
  using Plan = std::vector<LayerRange>;
  EXPECT_EQ(PlanLayerReads(*layout_, blocks, 1),
            (Plan{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}));
  EXPECT_EQ(PlanLayerReads(*layout_, blocks, kLayer + 1), (Plan{{0, 2}, {2, 4}, {4, 6}}));
  EXPECT_EQ(PlanLayerReads(*layout_, blocks, 4 * kLayer), (Plan{{0, 4}, {4, 6}}));
  EXPECT_EQ(PlanLayerReads(*layout_, blocks, UINT64_MAX), (Plan{{0, 6}}));
  EXPECT_EQ(PlanLayerReads(*layout_, {}, 1), (Plan{{0, 6}}));
}

// However the layers are cut, the bytes are the same; a group may have no tokens in a block.
TEST_F(LayerReaderTest, EveryCutLoadsTheSameBytes) {
  const std::vector<PagedBlock> blocks = {
      {"a", {{{0, 4}, {40, 12}}, {{100, 7}}}}, {"b", {{{16, 16}}, {}}}, {"c", {{}, {{0, 16}}}}};
  std::vector<std::string> bytes;
  for (const PagedBlock& block : blocks) {
    bytes.push_back(Bytes(block));
    store_.Set(block.key, bytes.back());
  }
  for (const uint64_t least : {1u, 700u, 1500u, 2000u, 100'000u}) {
    memory_.Clear();
    LayerProgress progress(6, 3);
    LayerReader reader(&store_, *layout_, blocks, &progress);
    const auto plan = PlanLayerReads(*layout_, blocks, least);
    const LoadResult result = reader.Run(plan, true, Deadline::After(seconds(20)));
    EXPECT_EQ(result.leading_blocks, 3u);
    EXPECT_EQ(progress.ready(), 6u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Bytes(blocks[i]), bytes[i]) << least;
    const auto calls = store_.TakeCalls();
    EXPECT_LE(calls.size(), plan.size());
    EXPECT_TRUE(calls[0].touch);
    EXPECT_EQ(calls[0].keys.back(), "a");  // tail-first
    for (size_t i = 1; i < calls.size(); ++i) EXPECT_FALSE(calls[i].touch);
  }
}

TEST_F(LayerReaderTest, WhatHasFailedIsNotReadAgain) {
  const std::vector<PagedBlock> blocks = {{"a", {{{0, 4}}, {}}}, {"b", {{{16, 4}}, {}}}};
  store_.Set("b", Bytes(blocks[1]));
  store_.FailKey("a", StatusCode::kUnavailable);
  LayerProgress progress(6, 2);
  LayerReader reader(&store_, *layout_, blocks, &progress);
  const LoadResult result =
      reader.Run(PlanLayerReads(*layout_, blocks, 1), true, Deadline::After(seconds(20)));
  EXPECT_EQ(result.blocks[0].status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(result.blocks[1].ok());
  const auto calls = store_.TakeCalls();
  ASSERT_EQ(calls.size(), 4u);  // layers 2 and 5 have no tokens in these blocks
  EXPECT_THAT(calls[0].keys, ElementsAre("b", "a"));
  EXPECT_THAT(calls[1].keys, ElementsAre("b"));
}

TEST_F(LayerReaderTest, APassedDeadlineLeavesTheRest) {
  const std::vector<PagedBlock> blocks = {{"a", {{{0, 4}}, {}}}};
  store_.Set("a", Bytes(blocks[0]));
  LayerProgress progress(6, 1);
  LayerReader reader(&store_, *layout_, blocks, &progress);
  const LoadResult result =
      reader.Run(PlanLayerReads(*layout_, blocks, 1), true, Deadline::After(seconds(0)));
  EXPECT_EQ(result.blocks[0].status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(store_.TakeCalls().empty());
}

}  // namespace
}  // namespace ems::context
