// What must hold: both sides get the same requests; prefixes are stored before they count, so the
// share that comes from the cache is exactly the one stated; an answer that differs is found.
#include "bench/serve/serve_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/bench/serve/serving_fakes.h"

namespace ems::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::function<bool()> kNever = [] { return false; };

ServeSettings Settings() {
  ServeSettings settings;
  settings.chat = {.conversations = 3, .rounds = 3, .system_tokens = 128, .user_tokens = 64};
  settings.chat_output_tokens = 16;
  settings.prefix = {.groups = 2, .prompts = 6, .prompt_tokens = 640, .block_tokens = 64};
  settings.output_tokens = 8;
  settings.load.concurrency = 3;
  settings.cache_salt = "mine";
  return settings;
}

ServeSide Side(const FakeLoop& loop, std::string name, SideCache cache) {
  return {
      .name = std::move(name), .client = ServeClient(loop.address(), "scripted"), .cache = cache};
}

std::vector<ServeSide> Both(const FakeLoop& without, const FakeLoop& with) {
  return {Side(without, "without", SideCache::kNone), Side(with, "with", SideCache::kExpected)};
}

Result<ServeResults> RunSides(ServeSettings settings, std::vector<ServeSide> sides,
                              std::vector<std::string>* phases = nullptr) {
  ServeBench bench(std::move(settings), std::move(sides), kNever);
  return bench.Run([&](const std::string& name) {
    if (phases != nullptr) phases->push_back(name);
  });
}

TEST(ServeBenchTest, TheShareFromTheCacheIsTheOneStated) {
  const FakeLoop without({.caches = false}), with;
  std::vector<std::string> phases;
  const auto results = RunSides(Settings(), Both(without, with), &phases);
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_THAT(phases, ElementsAre("chat", "reuse 50 %, one at a time", "reuse 50 %, 3 at a time",
                                  "reuse 90 %, one at a time", "reuse 90 %, 3 at a time"));
  EXPECT_THAT(results->differences, SizeIs(0));
  ASSERT_THAT(results->phases, SizeIs(5));
  for (size_t i = 1; i < 5; ++i) {
    const ServePhase& phase = results->phases[i];
    EXPECT_EQ(phase.alone, i % 2 == 1);
    ASSERT_THAT(phase.sides, SizeIs(2));
    for (const ServeFigures& side : phase.sides) {
      EXPECT_EQ(side.succeeded, 6U) << phase.name << ": primes do not count";
      EXPECT_EQ(side.failed, 0U);
      EXPECT_EQ(side.prompt_tokens, 6U * 640);
      EXPECT_EQ(side.output_tokens, 6U * 8);
      EXPECT_GT(side.elapsed, Duration{0});
    }
    EXPECT_EQ(phase.sides[0].cached_tokens, 0U);
    EXPECT_DOUBLE_EQ(phase.sides[1].cached_share(), phase.reuse) << phase.name;
  }
}

TEST(ServeBenchTest, WarmUpsAreAskedOfEachSideAndCountForNothing) {
  FakeLoop without({.caches = false}), with;
  ServeSettings settings = Settings();
  settings.chat.rounds = 0;
  settings.reuses = {};
  settings.warmup_prompts = 5;
  std::vector<std::string> phases;
  const auto results = RunSides(settings, Both(without, with), &phases);
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_THAT(phases, ElementsAre("warm-up"));
  EXPECT_THAT(results->phases, SizeIs(0));
  EXPECT_EQ(without.asked(), 5U);
  EXPECT_EQ(with.asked(), 5U);
}

TEST(ServeBenchTest, ConversationsHitWhatWasSaidBefore) {
  const FakeLoop without({.caches = false}), with;
  ServeSettings settings = Settings();
  settings.reuses = {};
  const auto results = RunSides(settings, Both(without, with));
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  ASSERT_THAT(results->rounds, SizeIs(3));
  for (const ServeRound& round : results->rounds) {
    EXPECT_EQ(round.sides[0].succeeded, 3U);
    EXPECT_EQ(round.sides[1].prompt_tokens, round.prompt_tokens);
    EXPECT_EQ(round.sides[0].cached_tokens, 0U);
  }
  EXPECT_EQ(results->rounds[0].reusable_tokens, 2U * 128) << "the system's words, but the first's";
  EXPECT_EQ(results->rounds[0].sides[1].cached_tokens, 2U * 128);
  // 128 + 7 + 64 + 12 were asked, of which 3 blocks are whole.
  EXPECT_EQ(results->rounds[1].reusable_tokens, 3U * 192);
  EXPECT_EQ(results->rounds[1].sides[1].cached_tokens, 3U * 192);
  const ServeFigures& all = results->phases[0].sides[1];
  EXPECT_EQ(all.succeeded, 9U);
  EXPECT_EQ(all.prompt_tokens, results->rounds[0].prompt_tokens + results->rounds[1].prompt_tokens +
                                   results->rounds[2].prompt_tokens);
}

TEST(ServeBenchTest, AnswersThatDifferAreFoundAndEndTheirConversation) {
  const FakeLoop without({.caches = false}), with({.answer_seed = 1});
  const auto results = RunSides(Settings(), Both(without, with));
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_THAT(results->rounds, SizeIs(1));
  EXPECT_THAT(results->differences, SizeIs(3 + 4 * 6));
  EXPECT_THAT(results->differences[0], HasSubstr("greedy"));
  EXPECT_THAT(results->differences[1], HasSubstr("seed 2"));
  EXPECT_THAT(results->differences[1], HasSubstr("without says 16 tokens"));
}

TEST(ServeBenchTest, ASideThatHasToCacheAndDoesNotIsAnError) {
  const FakeLoop without({.caches = false}), with({.caches = false});
  ServeSettings settings = Settings();
  settings.chat.rounds = 0;
  const auto results = RunSides(settings, Both(without, with));
  EXPECT_EQ(results.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ToString(results.status()), HasSubstr("with: a prefix of 320 tokens"));
}

TEST(ServeBenchTest, OneSideAloneMayOrMayNotCache) {
  const FakeLoop loop({.caches = false});
  const auto results = RunSides(Settings(), {Side(loop, "it", SideCache::kUnknown)});
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_THAT(results->phases, SizeIs(5));
  EXPECT_THAT(results->rounds, SizeIs(3));
  EXPECT_EQ(results->phases[4].sides[0].succeeded, 6U);
}

TEST(ServeBenchTest, RequestsThatFailAreCountedAndPrefixesThatFailAreErrors) {
  FakeLoop without({.caches = false});
  const FakeLoop with;
  without.generator().SetRefusal(Error(StatusCode::kUnavailable, "nobody is there"));
  ServeSettings settings = Settings();
  settings.reuses = {};
  auto results = RunSides(settings, Both(without, with));
  ASSERT_TRUE(results.ok()) << ToString(results.status());
  EXPECT_THAT(results->rounds, SizeIs(1)) << "no conversation goes on";
  EXPECT_EQ(results->phases[0].sides[0].failed, 3U);
  EXPECT_EQ(results->phases[0].sides[1].succeeded, 3U);
  EXPECT_THAT(results->differences, SizeIs(0));
  settings.reuses = {0.5};
  results = RunSides(settings, Both(without, with));
  EXPECT_EQ(results.status().code(), StatusCode::kUnavailable);
}

TEST(ServeBenchTest, StopsWhenToldTo) {
  const FakeLoop loop;
  ServeBench bench(Settings(), {Side(loop, "it", SideCache::kUnknown)}, [] { return true; });
  EXPECT_EQ(bench.Run([](const std::string&) {}).status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace ems::bench
