// What must hold: each option stands in the help with its range and default, and in the log with
// what it is.
#include "common/config_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config.h"
#include "proto/config.pb.h"

namespace ems::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ConfigTextTest, DescribeAndOneLineShowEachOption) {
  ServerConfig config;
  const std::string help = Describe(config);
  EXPECT_THAT(help, HasSubstr("dram.bytes"));
  EXPECT_THAT(help, HasSubstr("[16 MiB to 16 TiB] (default 1GiB)"));
  EXPECT_THAT(help, HasSubstr("(required)"));
  ASSERT_TRUE(LoadText("name: a\ndata_dir: /d\n", "s.yaml", {}, &config).ok());
  const std::string line = OneLine(config);
  EXPECT_THAT(line, StartsWith("name=a controller=127.0.0.1:7400"));
  EXPECT_THAT(line, HasSubstr("dram.bytes=1073741824"));
  EXPECT_THAT(line, HasSubstr("unix_path=\"\""));
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(ConfigTextTest, YamlLoadsAgainAsTheSameConfiguration) {
  ServerConfig config;
  const std::vector<std::string> odd = {"name=null",
                                        "data_dir=/a b/\"c\"\\d: #e",
                                        "kv_events.topic=- [x",
                                        "dram.low_watermark=0.1",
                                        "dram.bytes=3GiB",
                                        "unix_mode=0600"};
  ASSERT_EQ(LoadText("", "s.yaml", odd, &config), OkStatus());
  const std::string yaml = Yaml(config);
  EXPECT_THAT(yaml, StartsWith("name: \"null\"\n"));
  EXPECT_THAT(yaml, HasSubstr("dram:\n  bytes: 3221225472\n"));
  ServerConfig again;
  ASSERT_EQ(LoadText(yaml, "again.yaml", {}, &again), OkStatus()) << yaml;
  EXPECT_EQ(OneLine(again), OneLine(config));
  EXPECT_EQ(Yaml(again), yaml);
}

// Whoever reads it takes a text for a text, not for a number, a truth, nothing, or a comment.
TEST(ConfigTextTest, YamlQuotesEachText) {
  for (const std::string odd :
       {"12", "0600", "0x1f", "1e3", ".inf", "true", "no", "~", "null", "a: b", "a #b", "!tag",
        "&anchor", "*alias", "{a}", "? key", "2026-01-01", "@at", "%percent"}) {
    ServerConfig config;
    ASSERT_EQ(LoadText("", "s.yaml", {"name=a", "data_dir=/d", "kv_events.topic=" + odd}, &config),
              OkStatus())
        << odd;
    const std::string yaml = Yaml(config);
    EXPECT_THAT(yaml, HasSubstr("  topic: \"" + odd + "\"\n"));
    ServerConfig again;
    ASSERT_EQ(LoadText(yaml, "again.yaml", {}, &again), OkStatus()) << yaml;
    EXPECT_EQ(again.kv_events().topic(), odd);
  }
}

TEST(ConfigTextTest, YamlOfEachDaemonsDefaultsLoadsAgain) {
  ControllerConfig config;
  ASSERT_EQ(LoadText("data_dir: /d", "c.yaml", {}, &config), OkStatus());
  ControllerConfig again;
  ASSERT_EQ(LoadText(Yaml(config), "again.yaml", {}, &again), OkStatus());
  EXPECT_EQ(OneLine(again), OneLine(config));
}

}  // namespace
}  // namespace ems::config
