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
using testing::MemorySource;
using testing::ModelFiles;
using ::testing::Not;

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

TEST(ManifestMakerTest, SumsAreAskedOfAllFilesThatHaveBytes) {
  MemorySource source({{"large", std::string(200'000, 'x')}, {"none", ""}, {"small", "x"}});
  const std::string sum = "md5:0123456789abcdef0123456789abcdef";
  source.sums = {{"large", sum}, {"none", sum}, {"small", sum}};
  const auto make = [&](const AddOptions& options) {
    return MakeManifest(&source, "s3://b/m", {.model = "m", .version = "v"}, "models", options,
                        Soon());
  };
  const auto manifest = make({.block_bytes = 64 * kKiB});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->files[0].sum, sum);
  EXPECT_EQ(manifest->files[1].sum, "");
  EXPECT_EQ(manifest->files[2].sum, sum) << "of one block";
  const auto other = make({.block_bytes = 64 * kKiB, .ignore_tags = true});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->files[0].sum, "");
}

TEST(ManifestMakerTest, FilesAreUnprotectedOverPlainHttpWithoutASum) {
  Manifest manifest;
  manifest.files = {{"large", 20, "t"}, {"small", 10, "t"}, {"empty", 0, "t"}};
  manifest.blocks = {{0, 0, 10, {}}, {0, 10, 10, {}}, {1, 0, 10, {}}};
  const auto count = [&](const std::string& url) {
    manifest.source.url = url;
    return UnprotectedFiles(manifest);
  };
  EXPECT_EQ(count("http://h/m/"), 2U);
  EXPECT_EQ(count("s3://bucket/m?endpoint=http://h"), 2U) << "a store whose tags are no sums";
  for (const std::string url :
       {"/m", "https://h/m/", "s3://bucket/m", "s3://bucket/m?endpoint=https://h"})
    EXPECT_EQ(count(url), 0U) << url;
  manifest.files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  EXPECT_EQ(count("s3://bucket/m?endpoint=http://h"), 1U);
  manifest.files[1].sum = manifest.files[0].sum;
  EXPECT_EQ(count("s3://bucket/m?endpoint=http://h"), 0U);
}

TEST(ManifestMakerTest, WhatNothingProtectsIsReadTwiceUnlessThatIsRefused) {
  MemorySource source({{"a", "x"}, {"b", "y"}});
  source.sums = {{"a", "md5:0123456789abcdef0123456789abcdef"}};
  const auto first_read = [&](const std::string& url, SourceVerify verify) {
    return MakeManifest(&source, url, {.model = "m", .version = "v"}, "n", {.verify = verify},
                        Soon())
        ->source.first_read;
  };
  const std::string plain = "s3://bucket/m?endpoint=http://h", tls = "s3://bucket/m";
  EXPECT_EQ(first_read(plain, SourceVerify::kAuto), FirstRead::kTwiceUnlessChecked) << "b has none";
  EXPECT_EQ(first_read(plain, SourceVerify::kNever), FirstRead::kOnce);
  EXPECT_EQ(first_read(plain, SourceVerify::kAlways), FirstRead::kTwice);
  EXPECT_EQ(first_read(tls, SourceVerify::kAuto), FirstRead::kOnce);
  EXPECT_EQ(first_read("/m", SourceVerify::kAuto), FirstRead::kOnce);
  EXPECT_EQ(first_read("/m", SourceVerify::kAlways), FirstRead::kTwice);
  source.sums["b"] = source.sums["a"];
  EXPECT_EQ(first_read(plain, SourceVerify::kAuto), FirstRead::kOnce);
}

TEST(ManifestMakerTest, RemarksSayWhatIsReadTwiceAndWhatIsNotProtected) {
  Manifest manifest;
  manifest.files = {{"a", 20, "t"}, {"b", 10, "t"}};
  manifest.source.url = "http://h/m/";
  const auto remark = [&](SourceVerify asked, FirstRead kept) {
    manifest.source.first_read = kept;
    return RemarkOf(manifest, asked);
  };
  const AddRemark by_default = remark(SourceVerify::kAuto, FirstRead::kTwiceUnlessChecked);
  EXPECT_FALSE(by_default.warning);
  EXPECT_THAT(by_default.text, HasSubstr("2 of 2 files will be read twice"));
  EXPECT_THAT(by_default.text, HasSubstr("gives no checksum"));
  EXPECT_THAT(by_default.text, HasSubstr("--no-verify"));
  const AddRemark never = remark(SourceVerify::kNever, FirstRead::kOnce);
  EXPECT_TRUE(never.warning);
  EXPECT_THAT(never.text, HasSubstr("the first read of 2 of 2 files is unprotected"));
  EXPECT_THAT(never.text, HasSubstr("is cached and loaded as if it were right"));
  const AddRemark stays = remark(SourceVerify::kAuto, FirstRead::kOnce);
  EXPECT_TRUE(stays.warning) << "it was added with never before";
  EXPECT_THAT(stays.text, HasSubstr("model delete"));
  EXPECT_THAT(remark(SourceVerify::kAuto, FirstRead::kTwice).text,
              HasSubstr("with --verify before, and stays so"));
  EXPECT_FALSE(remark(SourceVerify::kNever, FirstRead::kTwiceUnlessChecked).warning);
  EXPECT_THAT(remark(SourceVerify::kNever, FirstRead::kTwice).text, HasSubstr("without --no-"));
  EXPECT_EQ(remark(SourceVerify::kAlways, FirstRead::kTwice).text, "") << "as was asked";
  manifest.source.url = "https://h/m/";
  for (const SourceVerify asked : {SourceVerify::kAuto, SourceVerify::kNever})
    EXPECT_EQ(remark(asked, FirstRead::kOnce).text, "");
}

TEST(ManifestMakerTest, RemarksSayWhatAddingAgainHasChangedAndWhatNot) {
  Manifest manifest;
  manifest.files = {{"a", 20, "t"}, {"b", 10, "t"}};
  const auto remark = [&](const std::string& url, SourceVerify asked, FirstRead kept,
                          const AddedAgain& again) {
    manifest.source.url = url;
    manifest.source.first_read = kept;
    return RemarkOf(manifest, asked, again);
  };
  const AddRemark lowered = remark("http://h/m/", SourceVerify::kNever, FirstRead::kOnce,
                                   {.before = FirstRead::kTwiceUnlessChecked});
  EXPECT_TRUE(lowered.warning);
  EXPECT_THAT(lowered.text, HasSubstr("were \"twice unless checked\" and are \"once\""));
  EXPECT_THAT(lowered.text, HasSubstr("is unprotected"));
  for (const std::string url : {"http://h/m/", "/m"}) {
    const AddRemark raised =
        remark(url, SourceVerify::kAlways, FirstRead::kTwice, {.before = FirstRead::kOnce});
    EXPECT_FALSE(raised.warning);
    EXPECT_THAT(raised.text, HasSubstr("were \"once\" and are \"twice\""));
  }
  const AddRemark elsewhere =
      remark("http://h/m/", SourceVerify::kNever, FirstRead::kTwice, {.elsewhere = true});
  EXPECT_THAT(elsewhere.text, HasSubstr("not changed, and it is read \"twice\" as before"));
  const AddRemark open =
      remark("http://h/m/", SourceVerify::kAuto, FirstRead::kOnce, {.elsewhere = true});
  EXPECT_TRUE(open.warning);
  EXPECT_THAT(open.text, HasSubstr("another URL"));
  EXPECT_THAT(open.text, Not(HasSubstr("may have been read")));
}

TEST(ManifestMakerTest, ListsThatNothingProtectsHaveToBeTheSameTwice) {
  MemorySource source({{"a", "x"}, {"b", "y"}}), second({{"a", "x"}, {"b", "y"}});
  const auto make = [&](const std::string& url, SourceVerify verify) {
    source.lists = second.lists = 0;
    return MakeManifest(&source, url, {.model = "m", .version = "v"}, "n", {.verify = verify},
                        Soon(), &second);
  };
  source.on_list = [&](Result<std::vector<SourceFile>>* list) {
    if (source.lists == 1) (*list)->pop_back();  // an index that lost a shard on the way
  };
  const Result<Manifest> right = make("http://h/", SourceVerify::kAuto);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->files.size(), 2U);
  EXPECT_EQ(source.lists, 2) << "a damaged one, and one that is as the other connection's";
  EXPECT_EQ(second.lists, 1);
  EXPECT_EQ(make("https://h/", SourceVerify::kAuto)->files.size(), 1U) << "TLS has its own sum";
  EXPECT_EQ(source.lists + second.lists, 1);
  for (const StatusCode code : {StatusCode::kDataLoss, StatusCode::kNotFound}) {
    source.on_list = [&](Result<std::vector<SourceFile>>* list) {
      if (source.lists == 1) *list = Error(code, "no JSON, or a shard that is not there");
    };
    EXPECT_TRUE(make("http://h/", SourceVerify::kAuto).ok());
    source.on_list = second.on_list = [&](auto* list) { *list = Error(code, "so it is"); };
    EXPECT_EQ(make("http://h/", SourceVerify::kAuto).status(), Error(code, "so it is"));
    EXPECT_EQ(source.lists + second.lists, 2);
    second.on_list = nullptr;
  }
  source.on_list = [](Result<std::vector<SourceFile>>* list) { (*list)->pop_back(); };
  const Status never = make("http://h/", SourceVerify::kAuto).status();
  EXPECT_EQ(never.code(), StatusCode::kDataLoss);
  EXPECT_THAT(ToString(never), HasSubstr("differs between reads, 6 times"));
  source.on_list = [](auto* list) { *list = Error(StatusCode::kUnavailable, "away"); };
  EXPECT_EQ(make("http://h/", SourceVerify::kAuto).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(source.lists + second.lists, 1);
}

TEST(ManifestMakerTest, HeadersAreComparedOverTwoConnections) {
  const std::string file = TwoTensors(1);
  MemorySource source({{"x.safetensors", file}}), second({{"x.safetensors", file}});
  source.damage = [](const std::string&, uint64_t, MutableBytes bytes) {
    bytes[11] ^= std::byte{1};  // always the same
  };
  const auto make = [&](WeightSource* other) {
    return MakeManifest(&source, "http://h/", {.model = "m", .version = "v"}, "n", {}, Soon(),
                        other);
  };
  const Status damaged = make(&second).status();
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss) << damaged;
  EXPECT_THAT(ToString(damaged), HasSubstr("the header of x.safetensors differs between reads"));
}

TEST(ManifestMakerTest, HeadersThatNothingProtectsHaveToBeTheSameTwice) {
  const std::string file = TwoTensors(1);
  MemorySource source({{"x.safetensors", file}});
  int reads = 0;
  int damaged = 1;
  source.damage = [&](const std::string&, uint64_t, MutableBytes bytes) {
    if (reads++ < damaged) bytes[static_cast<size_t>(9 + reads)] ^= std::byte{1};
  };
  const auto make = [&](const std::string& url, SourceVerify verify) {
    reads = 0;
    return MakeManifest(&source, url, {.model = "m", .version = "v"}, "n", {.verify = verify},
                        Soon());
  };
  const Result<Manifest> right = make("http://h/", SourceVerify::kAuto);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->blocks.size(), 3U) << "header, a, b";
  EXPECT_EQ(reads, 3) << "a damaged one, and two that are the same";
  (void)make("http://h/", SourceVerify::kNever);
  EXPECT_EQ(reads, 1);
  damaged = 1000;
  EXPECT_EQ(make("http://h/", SourceVerify::kAuto).status().code(), StatusCode::kDataLoss);
  damaged = 0;
  ASSERT_TRUE(make("https://h/", SourceVerify::kAuto).ok());
  EXPECT_EQ(reads, 1);
  source.compares = true;
  ASSERT_TRUE(make("http://h/", SourceVerify::kAuto).ok());
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(make("http://h/", SourceVerify::kAlways).ok());
  EXPECT_EQ(reads, 2);
}

}  // namespace
}  // namespace ems::model
