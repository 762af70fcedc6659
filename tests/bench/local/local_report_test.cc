// What must hold: tables set EMS beside the others, the document has every trial.
#include "bench/local/local_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/bench/local/local_trials.h"

namespace ems::bench {
namespace {

using test::GoodResults;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LocalReportTest, TablesHaveARowASideAndSizeAndRatios) {
  const std::string text = LocalTables(GoodResults());
  EXPECT_THAT(text, HasSubstr("Get: copy a value out"));
  EXPECT_THAT(text, HasSubstr("memcached unix"));
  EXPECT_THAT(text, HasSubstr("16 MiB"));
  EXPECT_THAT(text, HasSubstr("1.36"));     // EMS's Get beside memcpy
  EXPECT_THAT(text, HasSubstr("100.0 %"));  // one-sided
  EXPECT_THAT(text, HasSubstr("0.10 % of one core"));
  EXPECT_THAT(text, Not(HasSubstr("Exists")));  // was not measured
}

TEST(LocalReportTest, DocumentHasEveryLane) {
  SideResults results = GoodResults();
  results.missing.push_back("redis tcp: not installed");
  const nlohmann::ordered_json json = LocalJson(results);
  EXPECT_EQ(json["lanes"].size(), results.trials.size());
  EXPECT_EQ(json["lanes"][0]["side"], "memcpy");
  EXPECT_EQ(json["lanes"][0]["rounds"]["gb_per_second"].size(), 5U);
  EXPECT_EQ(json["storms"][0]["value_bytes"], 4096);
  EXPECT_EQ(json["missing"][0], "redis tcp: not installed");
}

}  // namespace
}  // namespace ems::bench
