// Paged KV through three real servers and back, byte for byte: over shared memory and over TCP,
// whole and layer by layer, MLA and GQA.
#include <gtest/gtest.h>

#include "ems_context/block_hash.h"
#include "ems_context/paged_cache.h"
#include "tests/ems_context/paged_memory.h"
#include "tests/support/cluster.h"

namespace ems::context {
namespace {

using std::chrono::seconds;
using test::PagedMemory;
using test::TensorShape;

constexpr size_t kBlocks = 9;

struct Model {
  std::string name;
  size_t layers;
  uint32_t block_tokens;
  std::vector<TensorShape> tensors;
};

// One engine: its memory, full of KV, and a client of the cluster.
struct Engine {
  Engine(const ems::testing::Cluster& cluster, TransportChoice transport, const Model& of,
         const PagedOptions& options = {})
      : model(of), memory(kBlocks * of.block_tokens / 16 * 2, 16) {
    layers.resize(model.layers);
    for (KvLayer& layer : layers)
      for (const TensorShape& shape : model.tensors) layer.tensors.push_back(memory.Add(shape));
    auto connected = cluster.Connect(transport, seconds(20));
    EXPECT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    store = std::make_unique<ClientBlockStore>(client.get());
    context = std::make_unique<ContextCache>(
        store.get(),
        ContextCacheOptions{.block_tokens = model.block_tokens, .timeout = seconds(20)});
    paged =
        std::make_unique<PagedCache>(context.get(), store.get(), *KvLayout::Make(layers), options);
  }
  std::vector<PagedBlock> Blocks(uint64_t seed) {
    KeyDomain domain;
    domain.model = model.name;
    const auto hasher =
        BlockHasher::Make(paged->DomainFor(domain), HashKind::kSha256, model.block_tokens);
    std::vector<int32_t> tokens(kBlocks * model.block_tokens);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 31);
    const std::vector<std::string> keys = hasher->HashTokens(tokens);
    std::mt19937_64 random(seed);
    slots =
        test::RandomSlots(paged->layout().slots(0), static_cast<uint32_t>(tokens.size()), &random);
    std::vector<PagedBlock> blocks;
    for (size_t i = 0; i < kBlocks; ++i) blocks.push_back({keys[i], {RunsOf(SlotsOf(i))}});
    return blocks;
  }
  std::vector<int64_t> SlotsOf(size_t block) const {
    const auto first = slots.begin() + static_cast<ptrdiff_t>(block * model.block_tokens);
    return {first, first + static_cast<ptrdiff_t>(model.block_tokens)};
  }
  std::vector<std::string> Bytes() const {
    std::vector<std::string> bytes;
    for (size_t i = 0; i < kBlocks; ++i) bytes.push_back(test::SlowGather(layers, 0, SlotsOf(i)));
    return bytes;
  }

  Model model;
  PagedMemory memory;
  std::vector<KvLayer> layers;
  std::vector<int64_t> slots;
  std::unique_ptr<Client> client;
  std::unique_ptr<ClientBlockStore> store;
  std::unique_ptr<ContextCache> context;
  std::unique_ptr<PagedCache> paged;
};

const Model kMla{"mla", 61, 128, {{1, 512}, {1, 64}}};
const Model kGqaTokensFirst{"gqa nhd", 80, 64, {{4, 32}, {4, 32}}};
const Model kGqaHeadsFirst{"gqa hnd",
                           80,
                           64,
                           {{4, 32, KvDtype::kBfloat16, KvOrder::kHeadsFirst},
                            {4, 32, KvDtype::kBfloat16, KvOrder::kHeadsFirst, 16}}};

class PagedKvTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = ems::testing::Cluster::Start({.controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  // Saved by one engine, loaded by another into other slots, in every way there is.
  static void RoundTrip(const Model& model) {
    SCOPED_TRACE(model.name);
    Engine writer(*cluster_, TransportChoice::kAuto, model);
    writer.memory.Fill(model.layers);
    const std::vector<PagedBlock> saved_blocks = writer.Blocks(1);
    const SaveResult saved = writer.paged->Save(saved_blocks, SavePhase::kPrefill);
    ASSERT_EQ(saved.stored_blocks, kBlocks) << ToString(saved.blocks[0]);
    const std::vector<std::string> bytes = writer.Bytes();
    for (const TransportChoice transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
      Engine reader(*cluster_, transport, model);
      const std::vector<PagedBlock> blocks = reader.Blocks(2);
      EXPECT_EQ(blocks[3].key, saved_blocks[3].key);
      for (int way = 0; way < 3; ++way) {
        SCOPED_TRACE(way);
        reader.memory.Clear();
        const LoadResult loaded = way == 0   ? reader.paged->Load(blocks)
                                  : way == 1 ? reader.paged->LoadAsync(blocks).Result()
                                             : LayerByLayer(&reader, blocks);
        EXPECT_EQ(loaded.leading_blocks, kBlocks);
        EXPECT_EQ(reader.Bytes(), bytes);
      }
    }
    EXPECT_EQ(writer.paged->Save(saved_blocks, SavePhase::kPrefill).existing_blocks, kBlocks);
  }

  static LoadResult LayerByLayer(Engine* reader, const std::vector<PagedBlock>& blocks) {
    const LayerLoad load = reader->paged->LoadLayers(blocks);
    for (size_t layer = 0; layer < load.layers(); ++layer) {
      const auto ready = load.WaitLayer(layer, Deadline::After(seconds(20)));
      EXPECT_TRUE(ready.ok()) << ready.status();
      if (!ready.ok()) break;
      EXPECT_EQ(ready->leading_blocks, kBlocks) << "layer " << layer;
    }
    return load.Result();
  }

  static std::unique_ptr<ems::testing::Cluster> cluster_;
};
std::unique_ptr<ems::testing::Cluster> PagedKvTest::cluster_;

TEST_F(PagedKvTest, MlaOf61LayersComesBackAsItWas) { RoundTrip(kMla); }
TEST_F(PagedKvTest, GqaOf80LayersTokensFirstComesBackAsItWas) { RoundTrip(kGqaTokensFirst); }
TEST_F(PagedKvTest, GqaOf80LayersHeadsFirstComesBackAsItWas) { RoundTrip(kGqaHeadsFirst); }

TEST_F(PagedKvTest, RanksThatShareSaveEachBlockOnce) {
  Model model = kMla;
  model.name = "mla, shared";
  std::vector<std::string> bytes;
  size_t stored = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Engine engine(*cluster_, TransportChoice::kAuto, model,
                  {.tp_rank = rank, .tp_size = 4, .shared_by_tp = true});
    engine.memory.Fill(5);  // the same on all ranks
    stored += engine.paged->Save(engine.Blocks(1), SavePhase::kPrefill).stored_blocks;
    bytes = engine.Bytes();
  }
  EXPECT_EQ(stored, kBlocks);
  Engine reader(*cluster_, TransportChoice::kAuto, model,
                {.tp_rank = 2, .tp_size = 4, .shared_by_tp = true});
  EXPECT_EQ(reader.paged->Load(reader.Blocks(3)).leading_blocks, kBlocks);
  EXPECT_EQ(reader.Bytes(), bytes);
}

// The same keys, but objects of another length: never a part of them.
TEST_F(PagedKvTest, ObjectsOfAnotherLengthAreMisses) {
  Model model = kGqaTokensFirst;
  model.name = "another length";
  for (const TransportChoice transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
    Engine engine(*cluster_, transport, model);
    std::vector<PagedBlock> blocks = engine.Blocks(1);
    engine.paged->Save(blocks, SavePhase::kPrefill);
    for (PagedBlock& block : blocks) --block.runs[0].back().tokens;
    EXPECT_EQ(engine.paged->Load(blocks).leading_blocks, 0u);
    const LoadResult layers = engine.paged->LoadLayers(blocks).Result();
    for (const auto& block : layers.blocks) EXPECT_EQ(block.status().code(), StatusCode::kNotFound);
  }
}

// What another engine means by its bytes is in the key; what it has of them, in the length.
TEST_F(PagedKvTest, BlocksOfAnotherLayoutAreMisses) {
  Model model = kGqaTokensFirst;
  model.name = "another layout";
  Engine writer(*cluster_, TransportChoice::kAuto, model);
  const std::vector<PagedBlock> saved = writer.Blocks(1);
  ASSERT_EQ(writer.paged->Save(saved, SavePhase::kPrefill).stored_blocks, kBlocks);

  const auto changed = [&](size_t layers, TensorShape k, TensorShape v) {
    return Model{model.name, layers, model.block_tokens, {k, v}};
  };
  const TensorShape was{4, 32}, heads_first{4, 32, KvDtype::kBfloat16, KvOrder::kHeadsFirst},
      f16{4, 32, KvDtype::kFloat16};
  const std::vector<Model> others = {
      changed(80, was, heads_first), changed(80, heads_first, heads_first), changed(80, f16, was),
      changed(80, {8, 16}, was),     changed(80, {2, 32}, {6, 32}),         changed(79, was, was),
      changed(81, was, was),         changed(80, {4, 64}, {4, 64}),
  };
  for (size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    for (const TransportChoice transport : {TransportChoice::kAuto, TransportChoice::kTcp}) {
      Engine reader(*cluster_, transport, others[i]);
      std::vector<PagedBlock> blocks = reader.Blocks(1);
      EXPECT_NE(blocks[0].key, saved[0].key);
      EXPECT_EQ(reader.paged->Load(blocks).leading_blocks, 0u);
      if (reader.paged->layout().BlockBytes(0, 1) == writer.paged->layout().BlockBytes(0, 1))
        continue;
      // Even when an engine names its keys as the other one does.
      for (size_t j = 0; j < blocks.size(); ++j) blocks[j].key = saved[j].key;
      const LoadResult whole = reader.paged->Load(blocks);
      const LoadResult layers = reader.paged->LoadLayers(blocks).Result();
      for (size_t j = 0; j < kBlocks; ++j) {
        EXPECT_EQ(whole.blocks[j].status().code(), StatusCode::kNotFound) << j;
        EXPECT_EQ(layers.blocks[j].status().code(), StatusCode::kNotFound) << j;
      }
    }
  }
}

// Of another tensor-parallel rank or width: other heads, so other keys.
TEST_F(PagedKvTest, BlocksOfAnotherRankAreMisses) {
  Model model = kGqaTokensFirst;
  model.name = "another rank";
  Engine writer(*cluster_, TransportChoice::kAuto, model, {.tp_rank = 0, .tp_size = 2});
  ASSERT_EQ(writer.paged->Save(writer.Blocks(1), SavePhase::kPrefill).stored_blocks, kBlocks);
  for (const PagedOptions& options :
       {PagedOptions{.tp_rank = 1, .tp_size = 2}, PagedOptions{.tp_rank = 0, .tp_size = 4}}) {
    Engine reader(*cluster_, TransportChoice::kAuto, model, options);
    EXPECT_EQ(reader.paged->Load(reader.Blocks(1)).leading_blocks, 0u);
  }
  Engine same(*cluster_, TransportChoice::kAuto, model, {.tp_rank = 0, .tp_size = 2});
  EXPECT_EQ(same.paged->Load(same.Blocks(1)).leading_blocks, kBlocks);
}

}  // namespace
}  // namespace ems::context
