// Configuration is refused with file, line and key whenever it is not exactly what the schema
// allows.
#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "common/bytes.h"
#include "proto/config.pb.h"
#include "tests/support/temp_path.h"

namespace ems::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kLeast = "name: a\ndata_dir: /d\n";

Status LoadServer(std::string_view yaml, const std::vector<std::string>& overrides = {}) {
  ServerConfig config;
  return LoadText(yaml, "s.yaml", overrides, &config);
}

// The text of the error that `yaml`, after the two required keys, must give.
std::string ErrorOf(std::string_view yaml) {
  const Status status = LoadServer(std::string(kLeast) + std::string(yaml));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << yaml;
  return std::string(Message(status));
}

TEST(ConfigTest, DefaultsHoldUntilTheFileSaysOtherwise) {
  ServerConfig config;
  ASSERT_TRUE(LoadText(kLeast, "s.yaml", {}, &config).ok());
  EXPECT_EQ(config.name(), "a");
  EXPECT_EQ(config.controller(), "127.0.0.1:7400");
  EXPECT_EQ(config.dram().bytes(), kGiB);
  EXPECT_DOUBLE_EQ(config.dram().high_watermark(), 1.0);
  EXPECT_EQ(config.unix_path(), "");
  EXPECT_EQ(config.network().io_threads(), 0u);
}

TEST(ConfigTest, FileThenOverridesLastOneWins) {
  ServerConfig config;
  const Status status =
      LoadText("name: a\ndata_dir: '/a b'\ndram:\n  bytes: 64MiB\n  huge_pages: off\n", "s.yaml",
               {"dram.bytes=128MiB", "dram.bytes=256MiB", "dram.low_watermark=0.5"}, &config);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.dram().bytes(), 256 * kMiB);
  EXPECT_EQ(config.dram().huge_pages(), "off");
  EXPECT_DOUBLE_EQ(config.dram().low_watermark(), 0.5);
  EXPECT_EQ(config.data_dir(), "/a b");
}

TEST(ConfigTest, RequiredKeysMayComeFromOverridesAlone) {
  EXPECT_TRUE(LoadServer("", {"name=a", "data_dir=/d"}).ok());
  const Status missing = LoadServer("name: a\n");
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(missing)), HasSubstr("\"data_dir\" is required"));
  EXPECT_FALSE(LoadServer("name: a\ndata_dir: \"\"\n").ok());
}

TEST(ConfigTest, UnknownKeyNamesLineNearestAndKnown) {
  const std::string error = ErrorOf("dram:\n  segmnt_bytes: 64MiB\n");
  EXPECT_THAT(error, StartsWith("s.yaml:4: unknown key \"dram.segmnt_bytes\""));
  EXPECT_THAT(error, HasSubstr("did you mean \"segment_bytes\"?"));
  EXPECT_THAT(error, HasSubstr("known keys here: bytes, segment_bytes, huge_pages"));
  EXPECT_THAT(ErrorOf("\n\nzzzzzzzzzz: 1\n"), StartsWith("s.yaml:5: unknown key \"zzzzzzzzzz\";"));
}

TEST(ConfigTest, RangeTypeAndWordsAreChecked) {
  EXPECT_THAT(ErrorOf("dram:\n  bytes: 1MiB\n"),
              StartsWith("s.yaml:4: \"dram.bytes\" is 1MiB, allowed: 16 MiB to 16 TiB"));
  EXPECT_THAT(ErrorOf("dram:\n  bytes: lots\n"), HasSubstr("a size such as 64MiB is wanted"));
  EXPECT_THAT(ErrorOf("dram:\n  bytes: -1\n"), HasSubstr("\"dram.bytes\""));
  EXPECT_THAT(ErrorOf("dram:\n  high_watermark: nan\n"), HasSubstr("a number is wanted"));
  EXPECT_THAT(ErrorOf("dram:\n  high_watermark: 1.5\n"), HasSubstr("allowed: 0.1 to 1"));
  EXPECT_THAT(ErrorOf("network:\n  io_threads: 1e3\n"), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf("network:\n  io_threads: 99999999999999999999\n"), HasSubstr("whole number"));
  EXPECT_THAT(ErrorOf("log_level: loud\n"), HasSubstr("allowed: debug info warn error off"));
}

TEST(ConfigTest, AddressesAreChecked) {
  EXPECT_THAT(
      ErrorOf("listen: 127.0.0.1\n"),
      AllOf(StartsWith("s.yaml:3: \"listen\": address \"127.0.0.1\" is not host:port: the port "
                       "is missing"),
            HasSubstr("the default is 127.0.0.1:7500")));
  EXPECT_THAT(
      ErrorOf("kv_events:\n  listen: 5557\n"),
      StartsWith("s.yaml:4: \"kv_events.listen\": address \"5557\" is not host:port: the host"));
  EXPECT_THAT(ErrorOf("http_listen: a:70000\n"), HasSubstr("a number of 0 to 65535"));
  EXPECT_THAT(ErrorOf("listen: unix:/x\n"), HasSubstr("\"listen\""));
  EXPECT_THAT(ErrorOf("listen: \"\"\n"), HasSubstr("it is empty"));
  // A port to listen on may be any free one, one to connect to may not.
  EXPECT_TRUE(LoadServer(kLeast, {"listen=a:0", "http_listen=", "advertise=b:1"}).ok());
  EXPECT_THAT(ErrorOf("controller: a:0\n"), HasSubstr("nobody listens on port 0"));
  EXPECT_THAT(ErrorOf("advertise: b:0\n"), HasSubstr("nobody listens on port 0"));
}

TEST(ConfigTest, ListsOfAddressesAreCheckedOneByOne) {
  PdcConfig config;
  const auto load = [&](const std::string& peers) {
    return LoadText("", "p.yaml", {"prefill_peers=" + peers, "listen=unix:/run/x"}, &config);
  };
  EXPECT_EQ(load(""), OkStatus());
  EXPECT_EQ(load(" a:1  unix:/run/b "), OkStatus());
  EXPECT_THAT(std::string(Message(load("a:1 b"))),
              HasSubstr("\"prefill_peers\": address \"b\" is not host:port"));
  EXPECT_EQ(load("a:1,b:2"), OkStatus());
  EXPECT_THAT(std::string(Message(load("a:1;b:2"))), HasSubstr("\"prefill_peers\""));
  EXPECT_FALSE(load("unix:").ok());
}

TEST(ConfigTest, ModesAreOctal) {
  EXPECT_EQ(*ParseMode("660"), 0660U);
  EXPECT_EQ(*ParseMode("0777"), 0777U);
  for (const char* wrong : {"", "888", "1777", "rw", "66 ", "-1"})
    EXPECT_EQ(ParseMode(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  EXPECT_THAT(ErrorOf("unix_mode: 999\n"), StartsWith("s.yaml:3: \"unix_mode\": \"999\" is not"));
}

TEST(ConfigTest, ShapeIsChecked) {
  EXPECT_THAT(ErrorOf("dram: 5\n"), HasSubstr("\"dram\" must be a section"));
  EXPECT_THAT(ErrorOf("listen: [a, b]\n"), HasSubstr("single value, not a list"));
  EXPECT_THAT(ErrorOf("listen: {a: b}\n"), HasSubstr("single value, not a section"));
  EXPECT_THAT(ErrorOf("listen:\n"), HasSubstr("has no value"));
  EXPECT_THAT(ErrorOf("name: b\n"), HasSubstr("given twice, first on line 1"));
  EXPECT_THAT(ErrorOf("? [a]\n: b\n"), HasSubstr("a key must be a plain word"));
  EXPECT_THAT(ErrorOf("---\nname: b\n"), HasSubstr("second document"));
  EXPECT_THAT(ErrorOf("listen: \"a\\0b\"\n"), HasSubstr("control character"));
  EXPECT_THAT(std::string(Message(LoadServer("- a\n"))), HasSubstr("the file must be a section"));
  EXPECT_TRUE(LoadServer(std::string(kLeast) + "dram:\n  # nothing set\n").ok());
}

TEST(ConfigTest, BombsAreRefused) {
  EXPECT_THAT(ErrorOf("listen: &x a\n"), HasSubstr("anchors (&) and aliases (*)"));
  EXPECT_THAT(ErrorOf("listen: *x\n"), HasSubstr("s.yaml:3"));
  EXPECT_THAT(ErrorOf("listen: !!binary aGk=\n"), HasSubstr("tags (!)"));
  std::string deep = "dram: ";
  for (int i = 0; i < 40; ++i) deep += "{a: ";
  EXPECT_THAT(ErrorOf(deep + "1" + std::string(40, '}')), HasSubstr("deeper than 32 levels"));
  EXPECT_THAT(ErrorOf(std::string(100'000, '[')), HasSubstr("s.yaml:"));
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, ' ')), HasSubstr("longer than"));
  std::string wide;
  for (int i = 0; i < 2000; ++i) wide += fmt::format("k{}: 1\n", i);
  EXPECT_THAT(ErrorOf(wide), HasSubstr("more than 1000 keys"));
}

TEST(ConfigTest, BrokenYamlNamesTheLine) {
  EXPECT_THAT(ErrorOf("dram: {bytes: 64MiB\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(ErrorOf("listen: a: b: c\n"), StartsWith("s.yaml:3: not valid YAML"));
}

TEST(ConfigTest, BadOverridesNameThemselves) {
  const auto error = [](const std::string& text) {
    const Status status = LoadServer(kLeast, {text});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    return std::string(Message(status));
  };
  EXPECT_THAT(error("dram"), HasSubstr("write it as key=value"));
  EXPECT_THAT(error("=1"), HasSubstr("write it as key=value"));
  EXPECT_THAT(error("dram=1"), HasSubstr("is a section"));
  EXPECT_THAT(error("dram.byte=1"), HasSubstr("did you mean \"bytes\"?"));
  EXPECT_THAT(error("name.x=1"), HasSubstr("unknown key"));
  EXPECT_THAT(error("dram.bytes=1"), StartsWith("--set dram.bytes=1: \"dram.bytes\" is 1"));
  EXPECT_THAT(error("dram..bytes=1"), HasSubstr("unknown key"));
}

TEST(ConfigTest, FilesAreReadAndMissingOnesNamed) {
  const ::ems::testing::TempPath file("config.yaml");
  const std::string& path = file.path();
  std::ofstream(path) << "data_dir: /x\nlease_ms: 700\n";
  ControllerConfig config;
  ASSERT_TRUE(Load(path, {}, &config).ok());
  EXPECT_EQ(config.lease_ms(), 700u);
  std::remove(path.c_str());
  EXPECT_EQ(Load(path, {}, &config).code(), StatusCode::kNotFound);
  EXPECT_EQ(Load(::testing::TempDir(), {}, &config).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::config
