#include "ems_context/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ems_context/paged_memory.h"

namespace ems::context {
namespace {

using test::Joined;
using test::PagedMemory;
using test::SlowGather;
using test::SlowScatter;
using test::TensorShape;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MessageOf(const Result<KvLayout>& layout) {
  return layout.ok() ? "ok" : ToString(layout.status());
}

// Bytes gathered by the layout, through slots as an engine has them.
std::string Gather(const KvLayout& layout, uint32_t group, const std::vector<int64_t>& slots) {
  std::vector<MutableBytes> parts;
  const Status status = layout.AppendParts(group, RunsOf(slots), &parts);
  EXPECT_TRUE(status.ok()) << status;
  return Joined(parts);
}

void Scatter(const KvLayout& layout, uint32_t group, const std::vector<int64_t>& slots,
             const std::string& block) {
  std::vector<MutableBytes> parts;
  ASSERT_TRUE(layout.AppendParts(group, RunsOf(slots), &parts).ok());
  size_t at = 0;
  for (const MutableBytes part : parts) {
    std::memcpy(part.data(), block.data() + at, part.size());
    at += part.size();
  }
  EXPECT_EQ(at, block.size());
}

std::vector<KvLayer> Layers(PagedMemory* memory, size_t layers,
                            const std::vector<TensorShape>& shapes) {
  std::vector<KvLayer> list(layers);
  for (KvLayer& layer : list)
    for (const TensorShape& shape : shapes) layer.tensors.push_back(memory->Add(shape));
  return list;
}

// Gather and scatter agree with the reference; nothing but the named slots is written.
void ExpectAgrees(const std::vector<KvLayer>& layers, PagedMemory* memory, uint32_t tokens,
                  uint64_t seed) {
  const auto layout = KvLayout::Make(layers);
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::mt19937_64 random(seed);
  for (uint32_t group = 0; group < layout->groups(); ++group) {
    const auto slots = test::RandomSlots(layout->slots(group), tokens, &random);
    memory->Fill(seed);
    const std::string block = Gather(*layout, group, slots);
    EXPECT_EQ(block.size(), layout->BlockBytes(group, tokens));
    EXPECT_EQ(block, SlowGather(layers, group, slots));
    std::string other = block;
    for (size_t i = 0; i < other.size(); ++i)
      other[i] = static_cast<char>(static_cast<size_t>(other[i]) ^ (i * 7 + 1));
    SlowScatter(layers, group, slots, other);
    const auto expected = memory->Copy();
    memory->Fill(seed);
    Scatter(*layout, group, slots, other);
    EXPECT_EQ(memory->Copy(), expected);
    for (size_t layer = 0; layer < layout->layers(); ++layer) {
      if (layout->group_of(layer) != group) continue;
      std::vector<MutableBytes> parts;
      ASSERT_TRUE(layout->AppendLayerParts(layer, RunsOf(slots), &parts).ok());
      EXPECT_EQ(Joined(parts), other.substr(layout->LayerOffset(layer, tokens),
                                            layout->LayerBytes(layer, tokens)));
    }
  }
}

TEST(KvLayoutTest, MlaLatentAndRopeOf61Layers) {
  for (const uint32_t tokens : {16u, 128u, 512u}) {
    PagedMemory memory(tokens / 16 + 2, 16);
    const auto layers = Layers(&memory, 61, {{1, 512}, {1, 64}});
    ExpectAgrees(layers, &memory, tokens, tokens);
    const auto layout = KvLayout::Make(layers);
    EXPECT_EQ(layout->BlockBytes(0, tokens), uint64_t{61} * 576 * 2 * tokens);
    EXPECT_EQ(layout->LayerOffset(60, tokens), uint64_t{60} * 576 * 2 * tokens);
  }
}

TEST(KvLayoutTest, GqaOf80LayersInBothOrders) {
  for (const KvOrder order : {KvOrder::kTokensFirst, KvOrder::kHeadsFirst}) {
    PagedMemory memory(12, 16);
    const TensorShape shape{.heads = 2, .head_size = 16, .order = order};
    ExpectAgrees(Layers(&memory, 80, {shape, shape}), &memory, 128, 7);
  }
}

TEST(KvLayoutTest, PagesFrom16To512Tokens) {
  for (const KvOrder order : {KvOrder::kTokensFirst, KvOrder::kHeadsFirst}) {
    for (const uint32_t page : {16u, 32u, 64u, 128u, 256u, 512u}) {
      PagedMemory memory(3, page);
      ExpectAgrees(Layers(&memory, 2, {{3, 8, KvDtype::kFloat8E4M3, order}}), &memory, page, page);
    }
  }
}

TEST(KvLayoutTest, AnEmptySecondTensorCarriesNothing) {
  PagedMemory memory(8, 16);
  const auto with = Layers(&memory, 3, {{1, 576}, {1, 0}});
  ExpectAgrees(with, &memory, 32, 5);
  auto without = with;
  for (KvLayer& layer : without) layer.tensors.pop_back();
  EXPECT_EQ(KvLayout::Make(with)->Fingerprint(), KvLayout::Make(without)->Fingerprint());
}

TEST(KvLayoutTest, GroupsAreGatheredApart) {
  PagedMemory memory(8, 16);
  auto layers = Layers(&memory, 5, {{2, 8}, {2, 8, KvDtype::kBfloat16, KvOrder::kHeadsFirst}});
  layers[1].group = layers[3].group = 1;
  ExpectAgrees(layers, &memory, 48, 11);
  const auto layout = KvLayout::Make(layers);
  EXPECT_EQ(layout->groups(), 2u);
  EXPECT_EQ(layout->BlockBytes(0, 10), 3u * 10 * 64);
  EXPECT_EQ(layout->BlockBytes(1, 10), 2u * 10 * 64);
  EXPECT_EQ(layout->LayerOffset(3, 10), 10u * 64);
}

TEST(KvLayoutTest, GroupsMayPageDifferently) {
  PagedMemory wide(4, 64), narrow(10, 16);
  std::vector<KvLayer> layers(2);
  layers[0].tensors = {wide.Add({1, 8})};
  layers[1].tensors = {narrow.Add({1, 8})};
  layers[1].group = 1;
  const auto layout = KvLayout::Make(layers);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->slots(0), 256u);
  EXPECT_EQ(layout->slots(1), 160u);
  EXPECT_EQ(layout->block_tokens(1), 16u);
}

// Random shapes, orders, dtypes, gaps, groups, slots.
TEST(KvLayoutTest, AgreesWithTheReferenceForRandomLayouts) {
  std::mt19937_64 random(20);
  for (uint64_t round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const auto below = [&](uint64_t end) { return static_cast<uint32_t>(random() % end); };
    const uint32_t page = 1 + below(40);
    const uint64_t blocks = 1 + below(9);
    PagedMemory memory(blocks, page);
    const uint32_t groups = 1 + below(3);
    std::vector<KvLayer> layers(groups + below(4));
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].group = i < groups ? static_cast<uint32_t>(i) : below(groups);
      for (uint32_t tensors = 1 + below(3); tensors > 0; --tensors)
        layers[i].tensors.push_back(
            memory.Add({.heads = 1 + below(4),
                        .head_size = 1 + below(20),
                        .dtype = static_cast<KvDtype>(below(7)),
                        .order = below(2) == 0 ? KvOrder::kTokensFirst : KvOrder::kHeadsFirst,
                        .gap = below(2) == 0 ? 0 : below(13)}));
    }
    ExpectAgrees(layers, &memory, 1 + below(blocks * page), round);
  }
}

// One allocation [blocks, layers, 2, tokens, heads, size], as several engines have it: tensors lie
// between each other and share nothing.
TEST(KvLayoutTest, TensorsMayLieBetweenEachOther) {
  constexpr uint64_t kTensorBytes = uint64_t{16} * 2 * 8 * 2, kLayers = 4, kBlocks = 6;
  std::string memory(kTensorBytes * 2 * kLayers * kBlocks, 'x');
  std::vector<KvLayer> layers(kLayers);
  for (size_t i = 0; i < kLayers * 2; ++i) {
    KvTensor tensor{.blocks = kBlocks, .block_tokens = 16, .heads = 2, .head_size = 8};
    tensor.data = reinterpret_cast<std::byte*>(memory.data()) + i * kTensorBytes;
    tensor.bytes = memory.size() - i * kTensorBytes;
    tensor.block_stride = kTensorBytes * 2 * kLayers;
    layers[i / 2].tensors.push_back(tensor);
  }
  const auto layout = KvLayout::Make(layers);
  ASSERT_TRUE(layout.ok()) << layout.status();
  // A whole page of all layers is one piece.
  std::vector<MutableBytes> parts;
  ASSERT_TRUE(layout->AppendParts(0, std::vector<SlotRun>{{16, 16}}, &parts).ok());
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].data(), layers[0].tensors[0].data + layers[0].tensors[0].block_stride);
  EXPECT_EQ(parts[0].size(), kTensorBytes * 2 * kLayers);
}

TEST(KvLayoutTest, LatentAndRopeMayShareARow) {
  std::string memory(size_t{32} * 576 * 2, 'x');
  std::vector<KvLayer> layers(1);
  for (const size_t first : {0u, 512u}) {
    KvTensor tensor{.blocks = 2, .block_tokens = 16, .head_size = first == 0 ? 512u : 64u};
    tensor.data = reinterpret_cast<std::byte*>(memory.data()) + first * 2;
    tensor.bytes = memory.size() - first * 2;
    tensor.token_stride = uint64_t{576} * 2;
    layers[0].tensors.push_back(tensor);
  }
  EXPECT_EQ(MessageOf(KvLayout::Make(layers)), "ok");
  layers[0].tensors[1].data -= 2;
  EXPECT_THAT(MessageOf(KvLayout::Make(layers)),
              HasSubstr("layer 0, tensor 1: shares memory with layer 0, tensor 0"));
}

TEST(KvLayoutTest, AdjacentPiecesAreJoinedButNotWithWhatWasThere) {
  PagedMemory memory(8, 16);
  const auto layers = Layers(&memory, 1, {{2, 8}});
  const auto layout = KvLayout::Make(layers);
  std::vector<MutableBytes> parts;
  ASSERT_TRUE(layout->AppendParts(0, std::vector<SlotRun>{{8, 8}, {16, 40}, {60, 4}}, &parts).ok());
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].size(), 48u * 32);
  ASSERT_TRUE(layout->AppendParts(0, std::vector<SlotRun>{{64, 2}}, &parts).ok());
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].size(), 64u);
}

TEST(KvLayoutTest, SlotsOutOfRangeAppendNothing) {
  PagedMemory memory(4, 16);
  const auto layers = Layers(&memory, 2, {{1, 8}});
  const auto layout = KvLayout::Make(layers);
  std::vector<MutableBytes> parts;
  const auto code = [&](const std::vector<SlotRun>& runs) {
    const Status status = layout->AppendParts(0, runs, &parts);
    EXPECT_EQ(layout->AppendLayerParts(1, runs, &parts).code(), status.code());
    return status.code();
  };
  EXPECT_EQ(code({{0, 16}, {63, 2}}), StatusCode::kOutOfRange);
  EXPECT_EQ(code({{64, 1}}), StatusCode::kOutOfRange);
  EXPECT_EQ(code({{UINT64_MAX, 2}}), StatusCode::kOutOfRange);
  EXPECT_EQ(code(RunsOf(std::vector<int64_t>{3, -1})), StatusCode::kOutOfRange);
  EXPECT_EQ(code(RunsOf(std::vector<int64_t>{-1, 0})), StatusCode::kOutOfRange);
  EXPECT_TRUE(parts.empty());
  EXPECT_EQ(layout->AppendParts(1, {}, &parts).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(layout->AppendLayerParts(2, {}, &parts).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{63, 1}, {64, 0}}), StatusCode::kOk);
}

TEST(KvLayoutTest, RefusalsNameLayerAndTensor) {
  PagedMemory memory(4, 16);
  const auto good = Layers(&memory, 3, {{2, 8}, {2, 8}});
  const auto refusal = [&](auto change) {
    auto layers = good;
    change(&layers);
    return MessageOf(KvLayout::Make(layers));
  };
  const auto tensor = [&](auto change) {
    return refusal([&](auto* layers) { change(&(*layers)[2].tensors[1]); });
  };
  EXPECT_THAT(
      tensor([](KvTensor* t) { --t->bytes; }),
      AllOf(HasSubstr("layer 2, tensor 1: too small"), HasSubstr("2047 B"), HasSubstr("2048 B")));
  EXPECT_THAT(tensor([](KvTensor* t) { t->token_stride = 30; }),
              HasSubstr("layer 2, tensor 1: elements overlap"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->block_stride = 511; }),
              HasSubstr("layer 2, tensor 1: elements overlap"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->blocks = UINT64_MAX; }), HasSubstr("too small"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->heads = t->head_size = UINT32_MAX; }),
              HasSubstr("layer 2, tensor 1"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->data = nullptr; }),
              HasSubstr("layer 2, tensor 1: no memory"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->heads = 0; }), HasSubstr("layer 2, tensor 1: a shape"));
  EXPECT_THAT(tensor([](KvTensor* t) { t->block_tokens = 8; }),
              HasSubstr("layer 2, tensor 1: 4 blocks of 8 tokens, but its group 0 has 4 of 16"));
  EXPECT_THAT(tensor([&](KvTensor* t) { t->data = good[0].tensors[1].data; }),
              HasSubstr("layer 2, tensor 1: shares memory with layer 0, tensor 1"));
  EXPECT_THAT(tensor([&](KvTensor* t) { t->dtype = static_cast<KvDtype>(9); }),
              HasSubstr("layer 2, tensor 1: unknown dtype"));
  EXPECT_THAT(refusal([](auto* layers) { (*layers)[2].group = 2; }),
              HasSubstr("no layer is of group 1"));
  EXPECT_THAT(refusal([](auto* layers) { (*layers)[2].group = 3; }), HasSubstr("group 3"));
  EXPECT_THAT(refusal([](auto* layers) { (*layers)[1].tensors.clear(); }),
              HasSubstr("layer 1: no tensor with bytes"));
  EXPECT_THAT(refusal([](auto* layers) { layers->clear(); }), HasSubstr("no layers"));
  EXPECT_EQ(refusal([](auto*) {}), "ok");
}

TEST(KvLayoutTest, FingerprintsTellBytesApartAndIgnorePaging) {
  const auto fingerprint = [](size_t layers, std::vector<TensorShape> shapes, uint32_t page = 16) {
    PagedMemory memory(4, page);
    return KvLayout::Make(Layers(&memory, layers, shapes))->Fingerprint();
  };
  const std::string gqa = fingerprint(2, {{8, 16}, {8, 16}});
  EXPECT_EQ(gqa, "kv1 2*(g0 bf16:NHD:8x16 bf16:NHD:8x16)");
  EXPECT_EQ(fingerprint(2, {{8, 16, KvDtype::kBfloat16, KvOrder::kTokensFirst, 4}, {8, 16}}, 32),
            gqa);
  EXPECT_NE(fingerprint(3, {{8, 16}, {8, 16}}), gqa);
  EXPECT_NE(fingerprint(2, {{8, 16}, {16, 8}}), gqa);
  EXPECT_NE(fingerprint(2, {{8, 16, KvDtype::kFloat16}, {8, 16}}), gqa);
  EXPECT_NE(fingerprint(2, {{8, 16, KvDtype::kBfloat16, KvOrder::kHeadsFirst}, {8, 16}}), gqa);
  EXPECT_NE(fingerprint(1, {{8, 16}, {8, 16}, {8, 16}, {8, 16}}), gqa);
  EXPECT_EQ(fingerprint(1, {{1, 16, KvDtype::kInt8, KvOrder::kHeadsFirst}}),
            fingerprint(1, {{1, 16, KvDtype::kInt8}}));
  PagedMemory memory(4, 16);
  auto layers = Layers(&memory, 3, {{1, 8}});
  layers[1].group = 1;
  EXPECT_EQ(KvLayout::Make(layers)->Fingerprint(),
            "kv1 1*(g0 bf16:NHD:1x8) 1*(g1 bf16:NHD:1x8) 1*(g0 bf16:NHD:1x8)");
}

TEST(KvLayoutTest, RunsJoinFollowingSlotsInTheirOrder) {
  EXPECT_THAT(RunsOf(std::vector<int64_t>{4, 5, 6, 3, 4, 9}),
              ElementsAre(SlotRun{4, 3}, SlotRun{3, 2}, SlotRun{9, 1}));
  EXPECT_TRUE(RunsOf({}).empty());
  EXPECT_EQ(TokensOf(RunsOf(std::vector<int64_t>{4, 5, 6, 3, 4, 9})), 6u);
}

}  // namespace
}  // namespace ems::context
