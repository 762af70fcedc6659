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

}  // namespace
}  // namespace ems::config
