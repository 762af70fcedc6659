// What must hold: lines are whole, whatever their bytes; objects are found in a list and one after
// the other, with their lines; what is none, does not end or is too large is an error that says
// where.
#include "bench/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temp_path.h"

namespace ems::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceFileTest : public ::testing::Test {
 protected:
  // Ends with the error, if there is one.
  std::vector<std::string> Lines(std::string_view content) {
    std::ofstream(path_.path(), std::ios::binary) << content;
    auto file = TraceFile::Open(path_.path());
    EXPECT_TRUE(file.ok()) << ToString(file.status());
    std::vector<std::string> lines;
    while (true) {
      const auto line = file->NextLine();
      if (!line.ok()) lines.push_back(ToString(line.status()));
      if (!line.ok() || !*line) return lines;
      lines.emplace_back(**line);
    }
  }
  // "line: object" of each; ends with the error, if there is one.
  std::vector<std::string> Objects(const std::string& content) {
    std::ofstream(path_.path(), std::ios::binary) << content;
    auto file = TraceFile::Open(path_.path());
    EXPECT_TRUE(file.ok()) << ToString(file.status());
    std::vector<std::string> objects;
    while (true) {
      const auto object = file->NextObject();
      if (!object.ok()) objects.push_back(ToString(object.status()));
      if (!object.ok() || !*object) return objects;
      objects.push_back(fmt::format("{}: {}", file->line_number(), **object));
    }
  }
  const ::ems::testing::TempPath path_{"trace"};
};

TEST_F(TraceFileTest, LinesEndWithALineFeedOrTheFile) {
  EXPECT_THAT(Lines("one\r\n\nlast"), ElementsAre("one", "", "last"));
  EXPECT_THAT(Lines(""), ElementsAre());
  const std::string longest(kLineBytesMax, 'x');
  EXPECT_THAT(Lines(longest + "\n" + longest), ElementsAre(longest, longest));
  EXPECT_THAT(Lines(longest + "x").back(), HasSubstr(":1: line of more than"));
}

TEST_F(TraceFileTest, AZeroByteIsAByteOfItsLine) {
  using std::string_literals::operator""s;
  EXPECT_THAT(Lines("a\0b\nc\0d"s), ElementsAre("a\0b"s, "c\0d"s));
}

TEST_F(TraceFileTest, ObjectsStandInAListOrOneAfterTheOther) {
  EXPECT_THAT(Objects("[{\"a\": 1},\n {\"b\": [2]}]\n"),
              ElementsAre("1: {\"a\": 1}", "2: {\"b\": [2]}"));
  EXPECT_THAT(Objects("{\"a\": 1}\n\n{\"b\":\n2}\n{}"),
              ElementsAre("1: {\"a\": 1}", "3: {\"b\":\n2}", "5: {}"));
  EXPECT_THAT(Objects(""), ElementsAre());
  EXPECT_THAT(Objects("[]"), ElementsAre());
}

TEST_F(TraceFileTest, BracketsAndQuotesInTextsAreText) {
  const std::string object = R"({"a": "}{][\"}\\", "b": "\\\""})";
  EXPECT_THAT(Objects(object + "\n{}"), ElementsAre("1: " + object, "2: {}"));
}

TEST_F(TraceFileTest, WhatIsNoObjectIsAnErrorWithItsLine) {
  for (const char* content : {"\nx", "{}\n7", "[]\n{}", "[{}]\n[", "{},{}", "\n]"}) {
    const auto objects = Objects(content);
    ASSERT_FALSE(objects.empty()) << content;
    EXPECT_THAT(objects.back(), HasSubstr("where a JSON object should begin")) << content;
  }
  EXPECT_THAT(Objects("{}\n\n7").back(), HasSubstr(":3: byte 0x37"));
}

TEST_F(TraceFileTest, WhatDoesNotEndIsAnError) {
  EXPECT_THAT(Objects("\n{\"a\": \"}").back(), HasSubstr(":2: the object that begins here"));
  EXPECT_THAT(Objects("[{}").back(), HasSubstr("the list of objects does not end"));
}

TEST_F(TraceFileTest, LargeAndDeepObjectsAreRefused) {
  EXPECT_THAT(Objects("{" + std::string(kObjectBytesMax, ' ')).back(), HasSubstr("more than"));
  EXPECT_THAT(Objects("{\"a\":" + std::string(kObjectDepthMax, '[')).back(),
              HasSubstr("nested more than 64 deep"));
}

}  // namespace
}  // namespace ems::bench
