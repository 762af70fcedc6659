#include "model_files/format/block_cutter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "common/hash.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A tensor of a model that only exists as sizes and a version of its content.
struct Part {
  std::string name;
  uint64_t bytes;
  uint64_t content = 1;
};

// Tensors back to back, each padded to `alignment`, behind a header.
struct Model {
  std::vector<Part> parts;
  uint64_t alignment = 1;
  uint64_t header_bytes = 1000;

  TensorTable Table() const {
    TensorTable table;
    table.data_begin = RoundUp(header_bytes + 80 * parts.size(), alignment);
    uint64_t at = table.data_begin;
    for (const Part& part : parts) {
      table.tensors.push_back({.name = part.name,
                               .dtype = DType::kU8,
                               .shape = {part.bytes},
                               .offset = at,
                               .bytes = part.bytes});
      at = RoundUp(at + part.bytes, alignment);
    }
    return table;
  }
  uint64_t FileBytes(const TensorTable& table) const {
    return parts.empty()
               ? table.data_begin
               : RoundUp(table.tensors.back().offset + table.tensors.back().bytes, alignment);
  }
};

std::vector<BlockSpan> Cut(const Model& model, uint64_t block_bytes = kBlockBytesDefault,
                           std::string_view path = "m.safetensors") {
  const TensorTable table = model.Table();
  const CutFile file{.path = path, .bytes = model.FileBytes(table), .table = &table};
  auto blocks = CutIntoBlocks({&file, 1}, block_bytes);
  EXPECT_TRUE(blocks.ok()) << ToString(blocks.status());
  return blocks.ok() ? *std::move(blocks) : std::vector<BlockSpan>();
}

// What identifies a block's bytes and its server: the tensors' contents it covers, relative to the
// block, and its route.
std::string Identity(const Model& model, const TensorTable& table, const BlockSpan& block) {
  std::string text = fmt::format("{} {}", block.route, block.bytes);
  if (block.offset < table.data_begin) {  // a header differs with any tensor
    for (const TensorInfo& tensor : table.tensors)
      text += fmt::format(" {} {}", tensor.name, tensor.bytes);
    return text;
  }
  const auto first = std::ranges::upper_bound(
      table.tensors, block.offset, {},
      [](const TensorInfo& tensor) { return tensor.offset + tensor.bytes; });
  for (auto tensor = first;
       tensor != table.tensors.end() && tensor->offset < block.offset + block.bytes; ++tensor) {
    const Part& part = model.parts[static_cast<size_t>(tensor - table.tensors.begin())];
    text += fmt::format(" {} {}@{}", part.name, part.content,
                        static_cast<int64_t>(tensor->offset) - static_cast<int64_t>(block.offset));
  }
  return text;
}

struct Shared {
  uint64_t blocks_new = 0;  // of the second model, not in the first
  double bytes_share = 0;   // of the second model, found in the first
};
Shared Compare(const Model& before, const Model& after) {
  const TensorTable table_before = before.Table(), table_after = after.Table();
  std::set<std::string> known;
  for (const BlockSpan& block : Cut(before)) known.insert(Identity(before, table_before, block));
  Shared shared;
  uint64_t found = 0, all = 0;
  for (const BlockSpan& block : Cut(after)) {
    const bool is_known = known.contains(Identity(after, table_after, block));
    found += is_known ? block.bytes : 0;
    all += block.bytes;
    shared.blocks_new += is_known ? 0 : 1;
  }
  shared.bytes_share = static_cast<double>(found) / static_cast<double>(all);
  return shared;
}

// Layers as real models have them: matrices, norms and biases, and now and then a run of small
// tensors.
Model RandomModel(std::mt19937* random, size_t tensors) {
  Model model;
  model.alignment = (*random)() % 2 == 0 ? 1 : 32;
  for (size_t i = 0; i < tensors; ++i) {
    const uint32_t kind = (*random)() % 8;
    const uint64_t bytes = kind == 0   ? (*random)() % (40 * kMiB)
                           : kind <= 3 ? (*random)() % (4 * kMiB)
                           : kind == 4 ? 0
                                       : (*random)() % (40 * kKiB);
    model.parts.push_back({.name = fmt::format("model.layers.{}.t{}", i / 9, i), .bytes = bytes});
  }
  return model;
}

TEST(BlockCutterTest, AHeaderAndLargeTensorsHaveTheirOwnBlocks) {
  const Model model{.parts = {{"a", 40 * kMiB}, {"b", 16 * kMiB}, {"c", 64 * kKiB}}};
  const uint64_t at = model.Table().data_begin;
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const BlockSpan& block : Cut(model)) {
    EXPECT_EQ(block.file, 0u);
    EXPECT_THAT(block.route, MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(block.route.size(), 32u);
    spans.emplace_back(block.offset, block.bytes);
  }
  EXPECT_EQ(spans, (std::vector<std::pair<uint64_t, uint64_t>>{{0, at},
                                                               {at, 16 * kMiB},
                                                               {at + 16 * kMiB, 16 * kMiB},
                                                               {at + 32 * kMiB, 8 * kMiB},
                                                               {at + 40 * kMiB, 16 * kMiB},
                                                               {at + 56 * kMiB, 64 * kKiB}}));
}

TEST(BlockCutterTest, SmallTensorsAreGatheredAndEndWhereALargeOneBegins) {
  const Model model{
      .parts = {{"a", 1000}, {"b", 2000}, {"big", kMiB}, {"c", 10}, {"nothing", 0}, {"d", 10}}};
  const auto blocks = Cut(model);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[1].bytes, 3000u);
  EXPECT_EQ(blocks[2].bytes, kMiB);
  EXPECT_EQ(blocks[3].bytes, 20u);
}

TEST(BlockCutterTest, GatheredBlocksHave64KiBOrMoreButNotMuchMore) {
  Model model;
  for (int i = 0; i < 2000; ++i) model.parts.push_back({fmt::format("scale.{}", i), 3000});
  const auto blocks = Cut(model);
  ASSERT_GT(blocks.size(), 12u);
  uint64_t bytes = 0;
  for (size_t i = 1; i + 1 < blocks.size(); ++i) {
    EXPECT_GE(blocks[i].bytes, kBlockBytesMin);
    EXPECT_LE(blocks[i].bytes, kGatheredBytesMax);
    bytes += blocks[i].bytes;
  }
  EXPECT_LT(bytes / (blocks.size() - 2),
            2 * kBlockBytesMin);  // 64 KiB, and some four tensors to the next anchor
}

TEST(BlockCutterTest, PaddingBelongsToTheTensorBeforeIt) {
  TensorTable table;
  table.data_begin = 100;
  // A gap before the first tensor, one between, one behind; the last is longer than a block may be.
  table.tensors = {
      {.name = "a", .dtype = DType::kU8, .shape = {kMiB}, .offset = 128, .bytes = kMiB},
      {.name = "b", .dtype = DType::kU8, .shape = {kMiB}, .offset = 2 * kMiB, .bytes = kMiB}};
  const CutFile file{.path = "m.gguf", .bytes = 7 * kMiB, .table = &table};
  const auto blocks = CutIntoBlocks({&file, 1}, 4 * kMiB);
  ASSERT_TRUE(blocks.ok());
  std::vector<uint64_t> bytes;
  for (const BlockSpan& block : *blocks) bytes.push_back(block.bytes);
  EXPECT_EQ(bytes, (std::vector<uint64_t>{128, 2 * kMiB - 128, 4 * kMiB, kMiB}));
}

TEST(BlockCutterTest, OpaqueFilesAreCutEvenlyAndEmptyOnesHaveNoBlock) {
  const CutFile files[] = {{.path = "empty", .bytes = 0},
                           {.path = "tokenizer.json", .bytes = 150'000},
                           {.path = "sub/x", .bytes = 65536}};
  const auto blocks = CutIntoBlocks(files, 64 * kKiB);
  ASSERT_TRUE(blocks.ok());
  ASSERT_EQ(blocks->size(), 4u);
  EXPECT_EQ((*blocks)[2].file, 1u);
  EXPECT_EQ((*blocks)[2].offset, 131072u);
  EXPECT_EQ((*blocks)[2].bytes, 150'000u - 131072);
  EXPECT_EQ((*blocks)[3].file, 2u);
  std::set<std::string> routes;
  for (const BlockSpan& block : *blocks) routes.insert(block.route);
  EXPECT_EQ(routes.size(), 4u);
}

TEST(BlockCutterTest, ARouteNeverChanges) {
  // Another route would look for the blocks of stored models on other servers.
  const Model model{.parts = {{"model.embed_tokens.weight", 20 * kMiB}}};
  const auto blocks = Cut(model);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].route, "d3adbaf86ad56426c2d7b0854a89add8");
  EXPECT_EQ(blocks[1].route, "83c41aedcfbb43a6c5c0be3429e695ce");
  EXPECT_EQ(blocks[2].route, "1ba5abdc59e02fd31aea681a90f0eefc");
}

TEST(BlockCutterTest, TensorsAreRoutedAlikeInAnyFileHeadersByTheirPath) {
  const Model model{.parts = {{"a", 3 * kMiB}, {"b", 100}}};
  Model moved = model;
  moved.parts.insert(moved.parts.begin(), {"new", 5 * kMiB});
  moved.header_bytes = 7777;
  const auto here = Cut(model, kMiB, "one"), there = Cut(moved, kMiB, "two");
  ASSERT_EQ(here.size(), 5u);
  ASSERT_EQ(there.size(), 10u);
  EXPECT_NE(here[0].route, there[0].route);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(here[i].route, there[i + 5].route) << i;
}

TEST(BlockCutterTest, EveryByteIsInOneBlockInOrderAndAgainTheSame) {
  const uint32_t seed = 20260712;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    const Model a = RandomModel(&random, random() % 200), b = RandomModel(&random, random() % 5);
    const TensorTable table_a = a.Table(), table_b = b.Table();
    const std::vector<CutFile> files = {
        {.path = "a", .bytes = a.FileBytes(table_a), .table = &table_a},
        {.path = "config.json", .bytes = random() % (40 * kMiB)},
        {.path = "b", .bytes = b.FileBytes(table_b) + random() % 100, .table = &table_b}};
    const uint64_t block_bytes = kBlockBytesMin + random() % (kBlockBytesMax - kBlockBytesMin + 1);
    const auto blocks = CutIntoBlocks(files, block_bytes);
    ASSERT_TRUE(blocks.ok()) << ToString(blocks.status());
    EXPECT_EQ(*CutIntoBlocks(files, block_bytes), *blocks);
    uint32_t file = 0;
    uint64_t at = 0;
    for (const BlockSpan& block : *blocks) {
      while (file < block.file) {
        ASSERT_EQ(at, files[file].bytes) << file;
        ++file;
        at = 0;
      }
      ASSERT_EQ(block.file, file);
      ASSERT_EQ(block.offset, at);
      ASSERT_GT(block.bytes, 0u);
      ASSERT_LE(block.bytes, block_bytes);
      at += block.bytes;
    }
    for (; file < files.size(); ++file, at = 0) ASSERT_EQ(at, files[file].bytes) << file;
  }
}

Model EvenModel() {
  Model model;
  for (int i = 0; i < 100; ++i)
    model.parts.push_back({fmt::format("layers.{}.weight", i), 5 * kMiB + 4096});
  return model;
}

TEST(BlockCutterTest, TwoVersionsThatDifferInOneTensorOfAHundredShareTheRest) {
  const Model before = EvenModel();
  for (const uint64_t bytes :
       {5 * kMiB + 4096, 5 * kMiB + 4097, 7 * kMiB, 1 * kMiB, 100 * uint64_t{1}, 40 * kMiB}) {
    for (const size_t which : {size_t{0}, size_t{50}, size_t{99}}) {
      Model after = before;
      after.parts[which].bytes = bytes;
      after.parts[which].content = 2;
      const Shared shared = Compare(before, after);
      const uint64_t all = after.FileBytes(after.Table());
      EXPECT_GE(shared.bytes_share,
                std::min(0.97, 1 - static_cast<double>(bytes + kMiB) / static_cast<double>(all)));
      if (bytes <= 7 * kMiB) {
        EXPECT_GE(shared.bytes_share, 0.97) << bytes;
      }
      EXPECT_LE(shared.blocks_new, 1 + (bytes + kBlockBytesDefault - 1) / kBlockBytesDefault)
          << "and the header";
    }
  }
}

TEST(BlockCutterTest, ATensorThatComesGoesOrChangesTouchesOnlyItsNeighbours) {
  const uint32_t seed = 20260713;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  uint64_t touched = 0, touched_max = 0, rounds = 0;
  for (int round = 0; round < 300; ++round) {
    // Runs of small tensors are the hard case: only there do blocks hold several.
    Model before;
    for (int i = 0; i < 600; ++i) {
      const uint64_t bytes = random() % 50 == 0 ? kMiB : 1 + random() % (24 * kKiB);
      before.parts.push_back({fmt::format("r{}.t{}", round, i), bytes});
    }
    Model after = before;
    const auto place = after.parts.begin() + static_cast<ptrdiff_t>(random() % after.parts.size());
    switch (round % 3) {
      case 0:
        after.parts.insert(place, {"new", random() % (200 * kKiB)});
        break;
      case 1:
        after.parts.erase(place);
        break;
      default:
        *place = {place->name, 1 + random() % (24 * kKiB), 2};
    }
    const Shared shared = Compare(before, after);
    ASSERT_GE(shared.blocks_new, 1u);  // the header
    touched += shared.blocks_new - 1;
    touched_max = std::max(touched_max, shared.blocks_new - 1);
    ++rounds;
  }
  const double mean = static_cast<double>(touched) / static_cast<double>(rounds);
  RecordProperty("blocks_touched_mean", fmt::format("{}", mean));
  RecordProperty("blocks_touched_max", fmt::format("{}", touched_max));
  EXPECT_LE(mean, 3.0);
  EXPECT_LE(touched_max, 12u);
}

TEST(BlockCutterTest, ALargeTensorIsUntouchedByWhateverHappensToItsNeighbours) {
  const Model before{.parts = {{"norm", 8192}, {"big", 20 * kMiB}, {"bias", 100}, {"tail", kMiB}}};
  Model after = before;
  after.parts[0] = {"norm", 9000, 2};
  after.parts[2] = {"bias", 60 * kKiB, 2};
  EXPECT_EQ(Compare(before, after).blocks_new, 3u) << "header, norm, bias";
}

TEST(BlockCutterTest, WhatCannotBeCutIsRefused) {
  const auto error = [](const CutFile& file, uint64_t block_bytes) {
    return ToString(CutIntoBlocks({&file, 1}, block_bytes).status());
  };
  const CutFile opaque{.path = "x", .bytes = 100};
  EXPECT_EQ(error(opaque, kBlockBytesMin - 1),
            "INVALID_ARGUMENT: blocks of 65535 bytes; 65536 to 67108864");
  EXPECT_THAT(error(opaque, kBlockBytesMax + 1), HasSubstr("blocks of 67108865 bytes"));
  EXPECT_EQ(error(opaque, kBlockBytesMax), "OK");
  EXPECT_THAT(
      error({.path = "x", .bytes = UINT64_MAX}, kBlockBytesMin),
      HasSubstr("RESOURCE_EXHAUSTED: more than 4000000 blocks of 65536 bytes; 'x' alone has"));
  TensorTable table;
  table.data_begin = 50;
  EXPECT_THAT(error({.path = "x", .bytes = 49, .table = &table}, kBlockBytesMin),
              HasSubstr("x: a header of 50 bytes in a file of 49"));
  table.tensors = {{.name = "a", .dtype = DType::kU8, .shape = {10}, .offset = 50, .bytes = 10},
                   {.name = "b", .dtype = DType::kU8, .shape = {10}, .offset = 59, .bytes = 10}};
  EXPECT_THAT(error({.path = "x", .bytes = 100, .table = &table}, kBlockBytesMin),
              HasSubstr("x: tensor 'b' of 10 bytes at byte 59 does not fit between byte 60 and the "
                        "file's end at 100"));
  table.tensors[1].offset = 91;
  EXPECT_THAT(error({.path = "x", .bytes = 100, .table = &table}, kBlockBytesMin),
              HasSubstr("tensor 'b'"));
}

}  // namespace
}  // namespace ems::model
