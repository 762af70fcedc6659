// What must hold: one line a check, the worst one counts.
#include "tools/emsctl/doctor/finding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ems::emsctl {
namespace {

const Findings kThree = {
    {.check = "seals", .found = "hold"},
    {.level = Level::kFail, .check = "controller", .found = "no\nanswer", .mend = "start it"},
    {.level = Level::kWarn, .check = "swap", .found = "in use", .mend = "swapoff -a"}};

TEST(FindingTest, TheWorstOneCounts) {
  EXPECT_EQ(WorstOf({}), Level::kOk);
  EXPECT_EQ(WorstOf(std::span(kThree).first(1)), Level::kOk);
  EXPECT_EQ(WorstOf(std::span(kThree).last(1)), Level::kWarn);
  EXPECT_EQ(WorstOf(kThree), Level::kFail);
}

TEST(FindingTest, EachIsOneLineWithWhatWasFoundAndHowToMendIt) {
  EXPECT_EQ(FindingsText(kThree),
            "OK    seals       hold\n"
            "FAIL  controller  no answer: start it\n"
            "WARN  swap        in use: swapoff -a\n"
            "1 OK, 1 WARN, 1 FAIL\n");
}

TEST(FindingTest, TheDocumentHasTheSame) {
  const auto json = FindingsJson(kThree);
  EXPECT_EQ(json["result"], "FAIL");
  ASSERT_EQ(json["checks"].size(), 3U);
  EXPECT_EQ(
      json["checks"][2],
      nlohmann::ordered_json(
          {{"check", "swap"}, {"level", "WARN"}, {"found", "in use"}, {"mend", "swapoff -a"}}));
}

}  // namespace
}  // namespace ems::emsctl
