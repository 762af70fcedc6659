// What must hold: a manifest covers all files, cut by their tensors; equal files of two versions
// make equal blocks; what cannot be is refused with its name.
#include "ems_model/manifest_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/memory_model.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;
using testing::MakeValue;
using testing::MemorySource;
using testing::ModelFiles;

Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

Result<Manifest> Make(const ModelFiles& files, const AddOptions& options = {}) {
  MemorySource source(files);
  return MakeManifest(&source, "/models/m", {.model = "m", .version = "v"}, "models", options,
                      Soon());
}

std::string TwoTensors(uint64_t seed) {
  return testing::TensorFile(
      {{.name = "a", .shape = {256, 512}, .seed = seed}, {.name = "b", .shape = {512, 512}}});
}

TEST(ManifestMakerTest, HeadersAreCutApartAndTensorsByThemselves) {
  const ModelFiles files = {{"config.json", "{}"}, {"x.safetensors", TwoTensors(1)}};
  const Result<Manifest> manifest = Make(files, {.credentials = "team", .bytes_per_s_max = 5});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->bytes(), files.at("config.json").size() + files.at("x.safetensors").size());
  EXPECT_EQ(manifest->source,
            (ManifestSource{.url = "/models/m", .credentials = "team", .bytes_per_s_max = 5}));
  EXPECT_EQ(manifest->files[1].tag, "t");
  ASSERT_EQ(manifest->blocks.size(), 4U) << "config, header, a, b";
  EXPECT_EQ(manifest->blocks[2].bytes, 256U * 512 * 2);
  EXPECT_EQ(manifest->blocks[3].bytes, 512U * 512 * 2);
  EXPECT_NE(manifest->blocks[2].route, BlockRoute{});
  std::set<BlockRoute> routes;
  for (const ManifestBlock& block : manifest->blocks) routes.insert(block.route);
  EXPECT_EQ(routes.size(), 4U);
}

TEST(ManifestMakerTest, RoutesDoNotDependOnTheVersion) {
  const Result<Manifest> one = Make({{"x.safetensors", TwoTensors(1)}});
  const Result<Manifest> two = Make({{"x.safetensors", TwoTensors(2)}});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->blocks, two->blocks);
}

TEST(ManifestMakerTest, LongHeadersAreReadInFull) {
  std::vector<testing::MadeTensor> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back({.name = fmt::format("layer.{}.with.a.long.name", i), .shape = {4}});
  const ModelFiles files = {{"x.safetensors", testing::TensorFile(many)}};
  MemorySource source(files);
  const auto manifest =
      MakeManifest(&source, "/m", {.model = "m", .version = "v"}, "n", {}, Soon());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const uint64_t header = manifest->blocks[0].bytes;
  EXPECT_EQ(header, files.at("x.safetensors").size() - 3000 * 8);
  EXPECT_EQ(source.bytes_read(), header) << "each byte of it once, and nothing else";
}

TEST(ManifestMakerTest, GgufIsKnownAndWhatIsNotIsOpaque) {
  testing::GgufBuilder known;
  known.Add("a", {512, 256}, 0, 512 * 256 * 4).Add("b", {512, 256}, 0, 512 * 256 * 4);
  testing::GgufBuilder strange;
  strange.version = 1;
  strange.Add("a", {512, 256}, 0, 512 * 256 * 4);
  const Result<Manifest> manifest =
      Make({{"a.gguf", known.Build()}, {"b.gguf", strange.Build()}}, {.block_bytes = 64 * kMiB});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  std::map<uint32_t, int> blocks;
  for (const ManifestBlock& block : manifest->blocks) ++blocks[block.file];
  EXPECT_EQ(blocks[0], 3);
  EXPECT_EQ(blocks[1], 1);
}

TEST(ManifestMakerTest, OnlyFilesThatMatch) {
  const ModelFiles files = {{"a.bin", "x"}, {"sub/b.bin", "y"}, {"c.txt", "z"}};
  const Result<Manifest> manifest = Make(files, {.include = {"*.bin"}});
  ASSERT_TRUE(manifest.ok());
  ASSERT_EQ(manifest->files.size(), 2U);
  EXPECT_EQ(manifest->files[1].path, "sub/b.bin");
  const Status none = Make(files, {.include = {"*.gguf"}}).status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ToString(none), HasSubstr("*.gguf"));
}

TEST(ManifestMakerTest, ADamagedHeaderIsRefusedByName) {
  std::string damaged = TwoTensors(1);
  damaged[9] = '!';
  const Status status =
      Make({{"x.safetensors", damaged}, {"y.safetensors", TwoTensors(1)}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(ToString(status), HasSubstr("x.safetensors"));
}

TEST(ManifestMakerTest, ErrorsOfTheSourceAndOfNamesPass) {
  MemorySource source({{"x.safetensors", TwoTensors(1)}});
  source.gate = [](const std::string&, uint64_t) { return Error(StatusCode::kUnavailable, "no"); };
  EXPECT_EQ(MakeManifest(&source, "/m", {.model = "m", .version = "v"}, "n", {}, Soon()).status(),
            Error(StatusCode::kUnavailable, "no"));
  source.gate = nullptr;
  EXPECT_EQ(MakeManifest(&source, "/m", {.model = "m m", .version = "v"}, "n", {}, Soon())
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Make({{"f", "x"}}, {.block_bytes = 5}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ManifestMakerTest, FormatsByName) {
  EXPECT_EQ(FormatOf("a/b.safetensors"), FileFormat::kSafetensors);
  EXPECT_EQ(FormatOf("b.gguf"), FileFormat::kGguf);
  EXPECT_EQ(FormatOf("b.safetensors.index.json"), FileFormat::kOpaque);
}

}  // namespace
}  // namespace ems::model
