#include "model_files/format/internal/json_walk.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::model {
namespace {

using ::testing::HasSubstr;

// Writes down what it is told.
class Recorder final : public JsonVisitor {
 public:
  std::string text;
  std::string stop_at;  // the value at which it says no

  Status OnOpen(const JsonPlace& place, bool is_object) override {
    return Note(place, is_object ? "{" : "[");
  }
  Status OnClose(const JsonPlace& place, bool is_object) override {
    return Note(place, is_object ? "}" : "]");
  }
  Status OnScalar(const JsonPlace& place, const JsonScalar& value) override {
    struct Text {
      std::string operator()(std::nullptr_t) { return "null"; }
      std::string operator()(bool v) { return v ? "true" : "false"; }
      std::string operator()(int64_t v) { return fmt::format("i{}", v); }
      std::string operator()(uint64_t v) { return fmt::format("u{}", v); }
      std::string operator()(double v) { return fmt::format("d{}", v); }
      std::string operator()(std::string_view v) { return fmt::format("'{}'", v); }
    };
    return Note(place, std::visit(Text(), value));
  }

 private:
  Status Note(const JsonPlace& place, const std::string& what) {
    if (what == stop_at) return Error(StatusCode::kInvalidArgument, "enough");
    for (const std::string& key : place.keys) text += key + ".";
    text += fmt::format("{}{} ", place.arrays == 0 ? "" : fmt::format("@{}:", place.arrays), what);
    return OkStatus();
  }
};

TEST(JsonWalkTest, TellsPlaceAndValueOfEverythingInOrder) {
  Recorder seen;
  ASSERT_TRUE(WalkJson(R"({"a":{"b":[1,-2,[0.5]],"c":null},"d":"x","e":{},"f":true})", &seen).ok());
  EXPECT_EQ(seen.text,
            "{ a.{ a.b.[ a.b.@1:u1 a.b.@1:i-2 a.b.@1:[ a.b.@2:d0.5 a.b.@1:] a.b.] a.c.null a.} "
            "d.'x' e.{ e.} f.true } ");
}

TEST(JsonWalkTest, NumbersBeyond64BitsAreNoWholeNumbers) {
  Recorder seen;
  ASSERT_TRUE(
      WalkJson("[18446744073709551615, 18446744073709551616, -9223372036854775808, 1e3]", &seen)
          .ok());
  EXPECT_EQ(
      seen.text,
      "[ @1:u18446744073709551615 @1:d1.8446744073709552e+19 @1:i-9223372036854775808 @1:d1000 ] ");
}

TEST(JsonWalkTest, AVisitorsErrorEndsTheWalk) {
  Recorder seen;
  seen.stop_at = "u2";
  EXPECT_EQ(ToString(WalkJson("[1,2,3]", &seen)), "INVALID_ARGUMENT: enough");
  EXPECT_EQ(seen.text, "[ @1:u1 ");
}

TEST(JsonWalkTest, WhatIsNoStrictJsonIsRefused) {
  using std::string_view_literals::operator""sv;
  const struct {
    std::string_view json;
    const char* message;
  } kCases[] = {
      {"", "no valid JSON, at byte 1"},
      {"{", "no valid JSON, at byte 2"},
      {"{}x", "no valid JSON, at byte 3"},
      {"{} {}", "no valid JSON"},
      {"{}\0"sv, "at byte 2: a zero byte"},
      {"{\"a\":1,\"a\":2}", "JSON key 'a' appears twice"},
      {"{\"b\":{\"a\":1,\"c\":[],\"a\":2}}", "JSON key 'a' appears twice"},
      {"{\"a\":1,\"\\u0061\":2}", "JSON key 'a' appears twice"},
      {"[1,]", "no valid JSON"},
      {"[01]", "no valid JSON"},
      {"[1e999]", "no valid JSON"},
      {"[NaN]", "no valid JSON"},
      {"[\"\xFF\"]", "no valid JSON"},
      {"[\"\xED\xA0\x80\"]", "no valid JSON"},
      {"[\"\\ud800\"]", "no valid JSON"},
      {"[\"a\nb\"]", "no valid JSON"},
      {"// why\n{}", "no valid JSON"},
  };
  for (const auto& [json, message] : kCases) {
    Recorder seen;
    const Status status = WalkJson(json, &seen);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(ToString(status), HasSubstr(message)) << json;
  }
}

TEST(JsonWalkTest, NestingIsBounded) {
  Recorder seen;
  EXPECT_TRUE(
      WalkJson(std::string(kJsonDepthMax, '[') + std::string(kJsonDepthMax, ']'), &seen).ok());
  EXPECT_THAT(ToString(WalkJson(std::string(1'000'000, '['), &seen)),
              HasSubstr("nested deeper than 16 levels"));
}

}  // namespace
}  // namespace ems::model
