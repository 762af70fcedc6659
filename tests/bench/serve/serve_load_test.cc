// What must hold: all requests are asked once and answered in their order, as many at a time as
// wanted; arrivals are a Poisson process that a seed repeats.
#include "bench/serve/serve_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "tests/bench/serve/serving_fakes.h"

namespace ems::bench {
namespace {

const std::function<bool()> kNever = [] { return false; };

std::vector<ServeRequest> Requests(size_t count) {
  std::vector<ServeRequest> requests;
  for (size_t i = 0; i < count; ++i)
    requests.push_back({.prompt = "prompt " + std::to_string(i), .output_tokens = 4});
  return requests;
}

TEST(ServeLoadTest, OutcomesAreInTheOrderOfTheRequests) {
  FakeLoop loop;
  const ServeClient client(loop.address(), "scripted");
  const auto requests = Requests(40);
  const LoadResult alone = RunLoad(client, requests, {.concurrency = 1}, kNever);
  const LoadResult many = RunLoad(client, requests, {.concurrency = 8}, kNever);
  ASSERT_EQ(alone.outcomes.size(), 40U);
  ASSERT_EQ(many.outcomes.size(), 40U);
  EXPECT_EQ(loop.asked(), 80U);
  for (size_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(alone.outcomes[i].status.ok()) << ToString(alone.outcomes[i].status);
    EXPECT_EQ(alone.outcomes[i].text, many.outcomes[i].text);
    EXPECT_EQ(many.outcomes[i].prompt_tokens, requests[i].prompt.size());
  }
  EXPECT_NE(alone.outcomes[0].text, alone.outcomes[1].text);
  EXPECT_GE(alone.elapsed, alone.outcomes[0].e2e + alone.outcomes[39].e2e);
}

TEST(ServeLoadTest, AsManyAreUnderWayAsWanted) {
  pdc::api::ApiHarness harness;
  const ServeClient client(harness.server->address(), "scripted");
  const auto requests = Requests(3);
  LoadResult result;
  Thread load("load", [&] { result = RunLoad(client, requests, {.concurrency = 3}, kNever); });
  std::vector<std::shared_ptr<testing::ScriptedGeneration>> under_way(3);
  for (auto& one : under_way) one = harness.generator.Take();
  for (const auto& one : under_way) {
    ASSERT_NE(one, nullptr) << "the others have not ended yet";
    one->sink->OnTokens("x", 1);
    one->sink->OnFinish(pdc::api::FinishReason::kLength);
  }
  load.Join();
  EXPECT_TRUE(std::ranges::all_of(result.outcomes, [](const auto& o) { return o.status.ok(); }));
}

TEST(ServeLoadTest, ArrivalsAreAPoissonProcessThatASeedRepeats) {
  const auto times = ArrivalTimes(20'000, 50, 7);
  EXPECT_EQ(times, ArrivalTimes(20'000, 50, 7));
  EXPECT_NE(times, ArrivalTimes(20'000, 50, 8));
  EXPECT_TRUE(std::ranges::is_sorted(times));
  EXPECT_GE(times.front(), Duration{0});
  const double last_s = std::chrono::duration<double>(times.back()).count();
  EXPECT_NEAR(last_s, 400, 400 * 0.03);
  // Gaps longer than the mean are e^-1 of all.
  size_t longer = 0;
  for (size_t i = 1; i < times.size(); ++i)
    longer += times[i] - times[i - 1] > std::chrono::milliseconds(20) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(longer) / 20'000, 0.3679, 0.02);
}

TEST(ServeLoadTest, AnOpenLoopSendsNothingBeforeItIsDue) {
  FakeLoop loop;
  const ServeClient client(loop.address(), "scripted");
  const LoadSettings settings{.concurrency = 4, .rate = 400, .seed = 3};
  const LoadResult result = RunLoad(client, Requests(20), settings, kNever);
  EXPECT_GE(result.elapsed, ArrivalTimes(20, 400, 3).back());
  for (const ServeOutcome& outcome : result.outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << ToString(outcome.status);
    EXPECT_GT(outcome.ttft, Duration{0});
  }
}

TEST(ServeLoadTest, NothingIsSentOnceStopped) {
  FakeLoop loop;
  const ServeClient client(loop.address(), "scripted");
  const LoadResult result =
      RunLoad(client, Requests(5), {.concurrency = 2, .rate = 0.001}, [] { return true; });
  ASSERT_EQ(result.outcomes.size(), 5U);
  for (const ServeOutcome& outcome : result.outcomes)
    EXPECT_EQ(outcome.status.code(), StatusCode::kCancelled);
  EXPECT_EQ(loop.asked(), 0U);
}

}  // namespace
}  // namespace ems::bench
