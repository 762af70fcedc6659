// What must hold: a manifest survives the wire, and one that breaks a rule is refused with what and
// where.
#include "model_files/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/model.pb.h"

namespace ems::model {
namespace {

using ::testing::HasSubstr;

Manifest Sample() {
  Manifest manifest;
  manifest.model = "org/base-7b";
  manifest.version = "v1.2";
  manifest.name_space = "models";
  manifest.source = {.url = "http://h/p/", .credentials = "team", .bytes_per_s_max = 7};
  manifest.block_bytes = kBlockBytesMin;
  manifest.files = {
      {"config.json", 10, "t1"}, {"empty", 0, ""}, {"a/w.safetensors", 100'000, "t2"}};
  manifest.blocks = {{0, 0, 10, {std::byte{1}}},
                     {2, 0, kBlockBytesMin, {std::byte{2}}},
                     {2, kBlockBytesMin, 100'000 - kBlockBytesMin, {std::byte{3}}}};
  return manifest;
}

TEST(ManifestTest, SurvivesTheWire) {
  v1::ModelManifest proto;
  ToProto(Sample(), &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Sample());
  EXPECT_EQ(back->bytes(), 100'010U);
  Manifest other = Sample();
  for (const FirstRead one :
       {FirstRead::kOnce, FirstRead::kTwiceUnlessChecked, FirstRead::kTwice}) {
    other.source.first_read = one;
    ToProto(other, &proto);
    EXPECT_EQ(FromProto(proto).value(), other) << FirstReadName(one);
  }
}

TEST(ManifestTest, FirstReadsThatAreNotKnownAreThoseThatAreSafest) {
  v1::ModelSource source;
  source.set_first_read(static_cast<v1::FirstRead>(7));
  EXPECT_EQ(FromProto(source).first_read, FirstRead::kTwice);
  // Field 4 has been a boolean: "twice, unless there is a sum".
  ASSERT_TRUE(source.ParseFromString(std::string("\x20\x01", 2)));
  EXPECT_EQ(FromProto(source).first_read, FirstRead::kTwiceUnlessChecked);
}

TEST(ManifestTest, RefusesWhatBreaksARule) {
  struct Case {
    std::string part;  // of the message
    std::function<void(Manifest*)> breaks;
  };
  const std::vector<Case> cases = {
      {"model \"\"", [](Manifest* m) { m->model = ""; }},
      {"model \"/x\"", [](Manifest* m) { m->model = "/x"; }},
      {"model \"a//b\"", [](Manifest* m) { m->model = "a//b"; }},
      {"model \"a b\"", [](Manifest* m) { m->model = "a b"; }},
      {"version \"a/b\"", [](Manifest* m) { m->version = "a/b"; }},
      {"version", [](Manifest* m) { m->version = std::string(129, 'v'); }},
      {"namespace", [](Manifest* m) { m->name_space = ""; }},
      {"URL", [](Manifest* m) { m->source.url = ""; }},
      {"credentials", [](Manifest* m) { m->source.credentials = "a b"; }},
      {"blocks of 1 bytes", [](Manifest* m) { m->block_bytes = 1; }},
      {"0 files", [](Manifest* m) { m->files.clear(), m->blocks.clear(); }},
      {"no path", [](Manifest* m) { m->files[0].path = "../x"; }},
      {"no path", [](Manifest* m) { m->files[0].path = "a\nb"; }},
      {"no path", [](Manifest* m) { m->files[0].path = "\xff\xfe"; }},
      {"no path", [](Manifest* m) { m->files[0].path = "\x1b[2J"; }},
      {"without control characters", [](Manifest* m) { m->files[0].tag = "t\r\nX: y"; }},
      {"without control characters", [](Manifest* m) { m->source.url += '\x1b'; }},
      {"no path", [](Manifest* m) { m->files[0].path = "/x"; }},
      {"no path", [](Manifest* m) { m->files[0].path = "a/./x"; }},
      {"no path", [](Manifest* m) { m->files[0].path = "a//x"; }},
      {"no path", [](Manifest* m) { m->files[0].path = ""; }},
      {"twice", [](Manifest* m) { m->files[1].path = "config.json"; }},
      {"tag", [](Manifest* m) { m->files[0].tag = std::string(257, 't'); }},
      {"PiB", [](Manifest* m) { m->files[0].bytes = uint64_t{1} << 60; }},
      {"cover 10 of 11", [](Manifest* m) { m->files[0].bytes = 11; }},
      {"block 0", [](Manifest* m) { m->files[0].bytes = 9; }},
      {"block 0", [](Manifest* m) { m->blocks[0].bytes = 0; }},
      {"block 2", [](Manifest* m) { m->blocks[2].offset += 1; }},
      {"block 1", [](Manifest* m) { m->blocks[1].bytes += 1; }},
      {"is of file 0",
       [](Manifest* m) {
         m->blocks.push_back({0, 10, 1, {}});
       }},
      {"cover 65536", [](Manifest* m) { m->blocks.pop_back(); }},
  };
  ASSERT_TRUE(CheckManifest(Sample()).ok());
  for (const Case& one : cases) {
    Manifest manifest = Sample();
    one.breaks(&manifest);
    const Status status = CheckManifest(manifest);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << one.part;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(one.part));
  }
}

TEST(ManifestTest, CountsThatDoNotBelongTogetherAreRefused) {
  v1::ModelManifest proto;
  ToProto(Sample(), &proto);
  proto.mutable_block_routes()->pop_back();
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
  ToProto(Sample(), &proto);
  proto.mutable_files(0)->set_blocks(UINT32_MAX);
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
  ToProto(Sample(), &proto);
  proto.set_block_lengths(1, UINT64_MAX);  // the next offset would wrap
  EXPECT_EQ(FromProto(proto).status().code(), StatusCode::kInvalidArgument);
}

TEST(ManifestTest, KeysAreTheDigestAndFitAnObject) {
  BlockDigest digest{};
  digest[31] = std::byte{9};
  EXPECT_EQ(BlockKey(digest).size(), 33U);
  EXPECT_NE(BlockKey(digest), BlockKey(BlockDigest{}));
  EXPECT_EQ(RouteKey(Sample().blocks[0].route).size(), 16U);
}

TEST(ManifestTest, TheChecksumIsOfWhatItsBlocksAre) {
  const uint64_t checksum = ManifestChecksum(Sample());
  v1::ModelManifest proto;
  ToProto(Sample(), &proto);
  EXPECT_EQ(ManifestChecksum(*FromProto(proto)), checksum);
  for (const auto& change : std::vector<std::function<void(Manifest*)>>{
           [](Manifest* m) { m->source.first_read = FirstRead::kTwice; },
           [](Manifest* m) { m->name_space = "elsewhere"; },
           [](Manifest* m) { m->source.bytes_per_s_max = 1; }}) {
    Manifest same = Sample();
    change(&same);
    EXPECT_EQ(ManifestChecksum(same), checksum);
  }
  for (const auto& change : std::vector<std::function<void(Manifest*)>>{
           [](Manifest* m) { m->model = "other"; }, [](Manifest* m) { m->version = "v2"; },
           [](Manifest* m) { m->source.url += "x"; }, [](Manifest* m) { m->files[0].path += "x"; },
           [](Manifest* m) { m->files[0].tag += "x"; }, [](Manifest* m) { ++m->files[0].bytes; },
           [](Manifest* m) { m->files[0].sum = "md5:0123456789abcdef0123456789abcdef"; },
           [](Manifest* m) { --m->blocks[1].bytes; }, [](Manifest* m) { m->blocks[1].route = {}; },
           [](Manifest* m) { m->blocks.pop_back(); }}) {
    Manifest other = Sample();
    change(&other);
    EXPECT_NE(ManifestChecksum(other), checksum);
  }
}

}  // namespace
}  // namespace ems::model
