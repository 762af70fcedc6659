#include "tools/emsctl/curve_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/bytes.h"

namespace ems::emsctl {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

HitCurve Example() {
  HitCurve curve;
  curve.memory_bytes = 8 * kGiB;
  curve.lookups = 1000;
  curve.hits = 330;
  curve.samples = 5000;
  curve.age_s = 3;
  curve.enough = true;
  curve.estimates = {0.1, 0.2, 0.335, 0.41, 0.5, 1};
  return curve;
}

TEST(CurveTextTest, ShowsBarsAndASentence) {
  const std::string text = CurveText("chat", Example());
  EXPECT_THAT(text, HasSubstr("namespace chat: 33 % of 1000 look-ups"));
  EXPECT_THAT(text, ContainsRegex("2 GiB +0.25x +10 % +####\n"));
  EXPECT_THAT(text, ContainsRegex("64 GiB +8x +100 % +" + std::string(40, '#') + "\n"));
  EXPECT_THAT(text, HasSubstr("With 2x the memory 41 % of look-ups would hit (today 33 %)."));
  EXPECT_THAT(text, HasSubstr("3 s ago"));
}

TEST(CurveTextTest, WithoutAnEstimateItSaysWhy) {
  HitCurve few = Example();
  few.enough = false;
  EXPECT_THAT(CurveText("chat", few), HasSubstr("not enough samples"));
  EXPECT_THAT(CurveText("chat", few), Not(HasSubstr("would hit")));
  EXPECT_THAT(CurveText("chat", std::nullopt), HasSubstr("nothing was looked up yet"));
  EXPECT_TRUE(CurveJson("chat", few)["estimates"].is_null());
  EXPECT_EQ(CurveJson("chat", std::nullopt)["lookups"], 0);
}

TEST(CurveTextTest, ScriptsGetEachMemory) {
  const nlohmann::ordered_json json = CurveJson("chat", Example());
  EXPECT_EQ(json["name"], "chat");
  EXPECT_EQ(json["hit_rate"], 0.33);
  ASSERT_EQ(json["estimates"].size(), 6u);
  EXPECT_EQ(json["estimates"][3]["memory"], 2);
  EXPECT_EQ(json["estimates"][3]["memory_bytes"], 16 * kGiB);
  EXPECT_EQ(json["estimates"][3]["hit_rate"], 0.41);
}

}  // namespace
}  // namespace ems::emsctl
