// What must hold: rates are those between two samples, and none is shown where one would be wrong.
#include "tools/emsctl/top_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

namespace ems::emsctl {
namespace {

using std::chrono::seconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

Sample Before() {
  return {.at = TimePoint(seconds(10)),
          .servers = {{"a", {.gets = 100, .hits = 50, .boot_id = "1"}}},
          .namespaces = {{"chat", {.objects = 5, .evicted_objects = 10}}}};
}
Sample After() {
  return {.at = TimePoint(seconds(12)),
          .servers = {{"a",
                       {.gets = 300,
                        .hits = 200,
                        .puts = 20,
                        .read_bytes = 2'000'000'000,
                        .stored_bytes = 1'000'000,
                        .objects = 7,
                        .value_bytes = 50,
                        .pool_bytes = 100,
                        .evicted_objects = 6,
                        .boot_id = "1"}}},
          .namespaces = {
              {"chat",
               {.objects = 7, .value_bytes = 50, .evicted_objects = 16, .gets = 8, .hits = 2}}}};
}

TEST(TopTextTest, RatesAreThoseInBetween) {
  const auto json = TopJson(Before(), After());
  EXPECT_EQ(json["seconds"], 2.0);
  const auto& server = json["servers"][0];
  EXPECT_EQ(server["ops_per_s"], 110.0);
  EXPECT_EQ(server["hit_share"], 0.75);
  EXPECT_EQ(server["read_bytes_per_s"], 1e9);
  EXPECT_EQ(server["evicted_objects_per_s"], 3.0);
  EXPECT_EQ(json["namespaces"][0]["evicted_objects_per_s"], 3.0);
  const std::string text = TopText(Before(), After());
  EXPECT_THAT(text, ContainsRegex("a +110 +75.0 % +1.000 +0.001 +3 +50 B +50 % +7\n"));
  EXPECT_THAT(text, ContainsRegex("chat +7 +50 B +4 +25.0 % +3 "));
}

TEST(TopTextTest, AServerThatWasStartedAgainHasNoRates) {
  Sample after = After();
  after.servers["a"].boot_id = "2";
  const auto json = TopJson(Before(), after);
  EXPECT_TRUE(json["servers"][0]["ops_per_s"].is_null());
  EXPECT_EQ(json["servers"][0]["objects"], 7);
  EXPECT_TRUE(json["namespaces"][0]["evicted_objects_per_s"].is_null());
  EXPECT_THAT(TopText(Before(), after), ContainsRegex("a +- +- +- "));
}

// As of a server that does not say which start its counts are of.
TEST(TopTextTest, CountsThatGoBackMakeNoRates) {
  Sample before = After(), after = Before();
  before.at = TimePoint(seconds(10));
  after.at = TimePoint(seconds(12));
  const auto json = TopJson(before, after);
  for (const char* rate : {"ops_per_s", "hit_share", "read_bytes_per_s", "stored_bytes_per_s",
                           "evicted_objects_per_s"})
    EXPECT_TRUE(json["servers"][0][rate].is_null()) << rate;
  for (const char* rate : {"gets_per_s", "hit_share", "evicted_objects_per_s"})
    EXPECT_TRUE(json["namespaces"][0][rate].is_null()) << rate;
  EXPECT_EQ(json["namespaces"][0]["evicted_bytes_per_s"], 0.0) << "as before";
  EXPECT_THAT(TopText(before, after), ContainsRegex("a +- +- +- +- +- "));
}

TEST(TopTextTest, AServerThatCameMakesNoGrowthOfNamespaces) {
  Sample after = After();
  after.servers["b"] = {};
  EXPECT_TRUE(TopJson(Before(), after)["namespaces"][0]["evicted_objects_per_s"].is_null());
}

TEST(TopTextTest, WithoutGetsThereIsNoHitRate) {
  Sample after = Before();
  after.at = TimePoint(seconds(11));
  EXPECT_TRUE(TopJson(Before(), after)["servers"][0]["hit_share"].is_null());
  EXPECT_EQ(TopJson(Before(), after)["servers"][0]["ops_per_s"], 0.0);
}

TEST(TopTextTest, ASampleNamesThoseThatAreSilent) {
  const std::vector<ServerStats> servers = {
      {.name = "a", .json = std::string(R"({"gets": 3})")},
      {.name = "b", .json = Error(StatusCode::kUnavailable, "gone")},
      {.name = "c", .json = std::string("?")}};
  const Sample sample = SampleOf(servers, TimePoint(seconds(1)));
  EXPECT_EQ(sample.servers.at("a").gets, 3U);
  EXPECT_EQ(sample.silent.at("b"), "UNAVAILABLE: gone");
  EXPECT_THAT(sample.silent.at("c"), HasSubstr("not JSON"));
  EXPECT_THAT(TopText(sample, sample), HasSubstr("! server b: UNAVAILABLE: gone"));
}

TEST(TopTextTest, OnASmallScreenLinesAreCutAndLeftOut) {
  EXPECT_EQ(Fitted("one\ntwo\n\nfour\n", 0, 0), "one\ntwo\n\nfour\n");
  EXPECT_EQ(Fitted("one…two\nthree\n", 4, 0), "one…\nthre\n");
  EXPECT_EQ(Fitted("1\n2\n3\n4\n", 0, 4), "1\n2\n3\n4\n");
  EXPECT_EQ(Fitted("1\n2\n3\n4\n", 0, 3), "1\n2\n… 2 lines more\n");
}

}  // namespace
}  // namespace ems::emsctl
