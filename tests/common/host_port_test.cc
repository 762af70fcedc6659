// What must hold: host and port are read strictly, and the error for anything else says what to
// write.
#include "common/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems {
namespace {

using ::testing::HasSubstr;

TEST(HostPortTest, ReadsNamesNumbersAndBrackets) {
  const auto name = ParseHostPort("node-1.example:7500");
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->host, "node-1.example");
  EXPECT_EQ(name->port, 7500);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  EXPECT_EQ(ParseHostPort("*:65535")->port, 65535);
}

TEST(HostPortTest, SaysWhatIsMissingOrWrong) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "it is empty"},
      {"127.0.0.1", "the port is missing, write 127.0.0.1:PORT"},
      {"node:", "the port is missing, write node:PORT"},
      {"[::1]", "the port is missing, write [::1]:PORT"},
      {"5557", "the host is missing, write HOST:5557"},
      {":5557", "the host is missing, write HOST:5557"},
      {"node:65536", "a number of 0 to 65535"},
      {"node:-1", "a number of 0 to 65535"},
      {"node:http", "a number of 0 to 65535"},
      {"node:80x", "a number of 0 to 65535"},
      {"::1:80", "in brackets"},
      {"::1", "in brackets"},
      {"[]:80", "in brackets"},
      {"[::1]80", "in brackets"},
      {"[::1:80", "in brackets"},
      {"http://node:80", "without \"http://\""},
      {"node:80 ", "a blank"},
  };
  for (const auto& [text, says] : cases) {
    const Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(says)) << text;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(fmt::format("\"{}\"", text)));
  }
}

TEST(SplitAddressesTest, CommasAndBlanksSeparateThem) {
  EXPECT_EQ(SplitAddresses("a:1,b:2, c:3  d:4,"),
            (std::vector<std::string>{"a:1", "b:2", "c:3", "d:4"}));
  EXPECT_EQ(SplitAddresses("a:1"), (std::vector<std::string>{"a:1"}));
  EXPECT_TRUE(SplitAddresses("").empty());
  EXPECT_TRUE(SplitAddresses(" , ").empty());
}

}  // namespace
}  // namespace ems
