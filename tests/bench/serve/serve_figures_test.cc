// What must hold: figures are the sums and means of answers that came; failed ones are counted by
// their text and touch nothing else.
#include "bench/serve/serve_figures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ems::bench {
namespace {

using std::chrono::milliseconds;

ServeOutcome Outcome(int ttft_ms, int e2e_ms, uint64_t tokens) {
  ServeOutcome outcome;
  outcome.ttft = milliseconds(ttft_ms);
  outcome.e2e = milliseconds(e2e_ms);
  outcome.itl = {milliseconds(10), milliseconds(30)};
  outcome.prompt_tokens = 100;
  outcome.cached_tokens = 60;
  outcome.completion_tokens = tokens;
  return outcome;
}

TEST(ServeFiguresTest, SumsAndMeansOfWhatCame) {
  ServeFigures figures;
  EXPECT_EQ(figures.cached_share(), 0);
  EXPECT_EQ(figures.tokens_per_s(), 0);
  figures.Add(Outcome(100, 300, 5));
  figures.Add(Outcome(300, 300, 1));
  figures.elapsed = std::chrono::seconds(2);
  EXPECT_EQ(figures.succeeded, 2U);
  EXPECT_EQ(figures.prompt_tokens, 200U);
  EXPECT_EQ(figures.output_tokens, 6U);
  EXPECT_DOUBLE_EQ(figures.cached_share(), 0.6);
  EXPECT_DOUBLE_EQ(figures.requests_per_s(), 1);
  EXPECT_DOUBLE_EQ(figures.output_tokens_per_s(), 3);
  EXPECT_DOUBLE_EQ(figures.tokens_per_s(), 103);
  EXPECT_DOUBLE_EQ(figures.ttft.avg_ms(), 200);
  EXPECT_EQ(figures.tpot.count(), 1U) << "one token alone has none";
  EXPECT_DOUBLE_EQ(figures.tpot.avg_ms(), 50);
  EXPECT_EQ(figures.itl.count(), 4U);
  EXPECT_DOUBLE_EQ(figures.itl.avg_ms(), 20);
}

TEST(ServeFiguresTest, FailuresCountByTheirText) {
  ServeFigures figures;
  ServeOutcome failed = Outcome(100, 300, 5);
  failed.status = Error(StatusCode::kUnavailable, "gone");
  figures.Add(failed);
  figures.Add(failed);
  EXPECT_EQ(figures.succeeded, 0U);
  EXPECT_EQ(figures.failed, 2U);
  EXPECT_EQ(figures.prompt_tokens, 0U);
  EXPECT_EQ(figures.ttft.count(), 0U);
  ASSERT_EQ(figures.errors.size(), 1U);
  EXPECT_EQ(figures.errors.begin()->second, 2U);
  EXPECT_EQ(FiguresJson(figures)["errors"].size(), 1U);
}

TEST(ServeFiguresTest, MergingIsAddingBoth) {
  ServeFigures one, other;
  one.Add(Outcome(100, 300, 5));
  one.elapsed = std::chrono::seconds(1);
  other.Add(Outcome(300, 500, 5));
  other.elapsed = std::chrono::seconds(3);
  ServeOutcome failed;
  failed.status = Error(StatusCode::kUnavailable, "gone");
  other.Add(failed);
  one.Merge(other);
  EXPECT_EQ(one.succeeded, 2U);
  EXPECT_EQ(one.failed, 1U);
  EXPECT_EQ(one.elapsed, std::chrono::seconds(4));
  EXPECT_DOUBLE_EQ(one.ttft.avg_ms(), 200);
  EXPECT_EQ(one.errors.size(), 1U);
  const auto json = FiguresJson(one);
  EXPECT_EQ(json["generated_tokens"], 10);
  EXPECT_EQ(json["cached_share"], 0.6);
  EXPECT_EQ(json["e2e"]["avg_ms"], 400);
}

}  // namespace
}  // namespace ems::bench
