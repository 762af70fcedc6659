// What must hold: lines below the level are neither written nor formatted; times are RFC 3339; JSON
// is an object a line; what repeats is held back and counted; unknown words are refused by name.
#include "common/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace ems::log {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(LoggingTest, WritesFromTheLevelUpwards) {
  ASSERT_TRUE(Init("warn").ok());
  ::testing::internal::CaptureStderr();
  EMS_LOG(kInfo, "common", "quiet={}", 1);
  EMS_LOG(kWarn, "common", "loud={}", 2);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("common: loud=2"));
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
}

TEST(LoggingTest, DoesNotEvaluateWhatItDoesNotWrite) {
  ASSERT_TRUE(Init("off").ok());
  int evaluations = 0;
  EMS_LOG(kError, "common", "{}", ++evaluations);
  EXPECT_EQ(evaluations, 0);
}

TEST(LoggingTest, TimesAreUtcWithMilliseconds) {
  ASSERT_TRUE(Init("info").ok());
  ::testing::internal::CaptureStderr();
  EMS_LOG(kWarn, "common", "now={}", 1);
  const std::string text = ::testing::internal::GetCapturedStderr();
  const std::regex wanted(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning common: now=1\n)");
  EXPECT_TRUE(std::regex_match(text, wanted)) << text;
}

TEST(LoggingTest, JsonIsAnObjectALine) {
  ASSERT_TRUE(Init("info", "json").ok());
  ::testing::internal::CaptureStderr();
  EMS_LOG(kWarn, "common", "no room bytes={} why=\"{}\"", 7, "a\"\n\xff");
  EMS_LOG(kError, "common", "{}", "% {} %v");
  const auto lines = Lines(::testing::internal::GetCapturedStderr());
  ASSERT_THAT(lines, SizeIs(2));
  const auto first = nlohmann::json::parse(lines[0], nullptr, false);
  ASSERT_FALSE(first.is_discarded()) << lines[0];
  EXPECT_TRUE(std::regex_match(first["time"].get<std::string>(),
                               std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
  EXPECT_EQ(first["level"], "warn");
  EXPECT_EQ(first["message"], "no room");
  EXPECT_EQ(first["bytes"], 7);
  EXPECT_EQ(first["why"], "a\"\n\xef\xbf\xbd");
  EXPECT_EQ(nlohmann::json::parse(lines[1], nullptr, false)["message"], "% {} %v");
}

TEST(LoggingTest, WhatRepeatsIsHeldBackAndCounted) {
  for (const char* format : {"text", "json"}) {
    ASSERT_TRUE(Init("info", format).ok());
    ::testing::internal::CaptureStderr();
    for (int i = 1; i <= 25; ++i) EMS_LOG(kError, "common", "cannot be reached try={}", i);
    for (int i = 0; i < 5; ++i) EMS_LOG(kInfo, "common", "joined node={}", i);
    EXPECT_THAT(Lines(::testing::internal::GetCapturedStderr()), SizeIs(2 + 5)) << format;
    ::testing::internal::CaptureStderr();
    WriteHeldBack();  // nothing is due
    WriteAllHeldBack();
    const auto lines = Lines(::testing::internal::GetCapturedStderr());
    ASSERT_THAT(lines, SizeIs(1)) << format;
    if (format == std::string_view("text")) {
      EXPECT_THAT(lines[0], HasSubstr("cannot be reached try=25 (repeated 23 times in 0 s)"));
      continue;
    }
    const auto json = nlohmann::json::parse(lines[0], nullptr, false);
    EXPECT_EQ(json["try"], 25);
    EXPECT_EQ(json["repeated"], 23);
    EXPECT_EQ(json["repeated_s"], 0);
  }
}

// Each tells of a change: of a rolling restart of twenty servers all are written.
TEST(LoggingTest, ChangesOfStateAreHeldBackLater) {
  ASSERT_TRUE(Init("info").ok());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 30; ++i) EMS_LOG(kInfo, "common", "joined node={}", i);
  WriteAllHeldBack();
  const auto lines = Lines(::testing::internal::GetCapturedStderr());
  ASSERT_THAT(lines, SizeIs(20 + 1));
  EXPECT_THAT(lines.back(), HasSubstr("joined node=29 (repeated 10 times"));
}

TEST(LoggingTest, ANewStartForgetsWhatWasHeldBack) {
  ::testing::internal::CaptureStderr();
  for (int start = 0; start < 2; ++start) {
    ASSERT_TRUE(Init("info").ok());
    for (int i = 0; i < 3; ++i) EMS_LOG(kWarn, "common", "try={}", i);
  }
  EXPECT_THAT(Lines(::testing::internal::GetCapturedStderr()), SizeIs(2 * 2));
}

TEST(LoggingTest, DebugIsNeverHeldBack) {
  ASSERT_TRUE(Init("debug").ok());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) EMS_LOG(kDebug, "common", "request={}", i);
  EXPECT_THAT(Lines(::testing::internal::GetCapturedStderr()), SizeIs(100));
}

TEST(LoggingTest, RefusesAnUnknownFormat) {
  const Status status = Init("info", "xml");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("\"xml\""));
}

TEST(LoggingTest, RefusesAnUnknownLevel) {
  const Status status = Init("loud");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("\"loud\""));
}

}  // namespace
}  // namespace ems::log
