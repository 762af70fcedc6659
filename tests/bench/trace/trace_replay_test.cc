#include "bench/trace/trace_replay.h"

#include <gtest/gtest.h>

#include "bench/harness/figures.h"
#include "bench/harness/trace_payload.h"
#include "tests/ems_context/fake_block_store.h"

namespace ems::bench {
namespace {

using context::test::FakeBlockStore;

constexpr uint64_t kBlockBytes = 64;

TraceRequest Request(std::vector<uint64_t> blocks, uint64_t tokens_short = 0,
                     uint64_t timestamp_ms = 0) {
  TraceRequest request;
  request.timestamp_ms = timestamp_ms;
  request.input_tokens = blocks.size() * kTraceBlockTokens - tokens_short;
  request.blocks = std::move(blocks);
  return request;
}

Trace MakeTrace(std::vector<TraceRequest> requests) {
  Trace trace;
  trace.requests = std::move(requests);
  for (const TraceRequest& request : trace.requests)
    trace.request_blocks_max = std::max(trace.request_blocks_max, request.blocks.size());
  return trace;
}

ReplaySettings Settings() {
  ReplaySettings settings;
  settings.block_bytes = kBlockBytes;
  settings.ttft = {.prefill_tokens_per_s = 1000, .kv_bytes_per_token = 0};
  return settings;
}

struct Rig {
  FakeBlockStore store;
  context::ContextCache cache{&store};
  IdealLru ideal{kBlockBytes * 1000, kBlockBytes};

  ReplayResult Run(const Trace& trace, const ReplaySettings& settings) {
    TraceReplay replay(&trace, &cache, &ideal, settings);
    return replay.Run([](const ReplayTotals&) {}, [](uint64_t) {}, [] { return false; });
  }
};

// The key under which the replay keeps a block.
std::string KeyOf(uint64_t block) {
  context::KeyDomain domain;
  domain.model = "ems-bench trace";
  domain.dtype = "bytes";
  domain.kv_layout = fmt::format("512x{}", kBlockBytes);
  return *context::BlockHasher::Make(domain, context::HashKind::kSha256, 512)
              ->OwnKey(fmt::format("{}", block));
}

TEST(TraceReplayTest, HitsAreWhatEarlierRequestsSaved) {
  const Trace trace = MakeTrace({Request({1, 2, 3}), Request({1, 2, 4}, 100), Request({5})});
  Rig rig;
  const ReplayResult result = rig.Run(trace, Settings());
  const ReplayTotals& totals = result.totals;
  EXPECT_EQ(totals.requests, 3u);
  EXPECT_EQ(totals.blocks, 7u);
  EXPECT_EQ(totals.tokens, 7u * 512 - 100);
  EXPECT_EQ(totals.hit_blocks, 2u);
  EXPECT_EQ(totals.hit_tokens, 1024u);
  EXPECT_EQ(totals.arrived_blocks, 2u);
  EXPECT_EQ(totals.ideal_blocks, 2u);
  EXPECT_EQ(totals.DeltaPoints(), 0);
  EXPECT_EQ(totals.loaded_bytes, 2 * kBlockBytes);
  EXPECT_EQ(totals.saved_bytes, 5 * kBlockBytes);
  EXPECT_EQ(totals.wrong_bytes, 0u);
  EXPECT_EQ(totals.late_calls, 0u);
  EXPECT_EQ(totals.calls, 3u + 1 + 3);
  EXPECT_TRUE(totals.errors.empty());
  EXPECT_EQ(result.latencies.lookup.count(), 3u);
  EXPECT_EQ(result.latencies.load.count(), 1u);
}

TEST(TraceReplayTest, APartialLastBlockCountsItsTokensOnly) {
  const Trace trace = MakeTrace({Request({1, 2}, 500), Request({1, 2}, 500)});
  Rig rig;
  const ReplayResult result = rig.Run(trace, Settings());
  EXPECT_EQ(result.totals.hit_blocks, 2u);
  EXPECT_EQ(result.totals.hit_tokens, 524u);
  EXPECT_EQ(result.totals.ideal_tokens, 524u);
}

TEST(TraceReplayTest, ModelsTimeToFirstToken) {
  const Trace trace = MakeTrace({Request({1, 2}), Request({1, 2})});
  Rig rig;
  const ReplayResult result = rig.Run(trace, Settings());
  // 1,024 tokens at 1,000 a second; the second request misses none.
  EXPECT_NEAR(result.latencies.ttft_uncached.avg_ms(), 1024, 0.01);
  EXPECT_GE(result.latencies.ttft_cached.max_ms(), 1024);
  EXPECT_LT(result.latencies.ttft_cached.min_ms(), 1000);
}

TEST(TraceReplayTest, TtftLoadsTheKvOfTheModelWhosePrefillItComputes) {
  const TtftModel model{.prefill_tokens_per_s = 100, .kv_bytes_per_token = 1000};
  EXPECT_EQ(model.Compute(50), std::chrono::milliseconds(500));
  // 500,000 bytes of KV at 2,000 bytes in 4 ms.
  EXPECT_EQ(model.Load(500, 2000, std::chrono::milliseconds(4)), std::chrono::seconds(1));
  EXPECT_EQ(model.Load(0, 0, Duration(0)), Duration(0));
  EXPECT_NE(TtftModel().Text().find("70272 bytes a token, 6688 tokens/s"), std::string::npos);
  EXPECT_NE(TtftModel().Text().find("DeepSeek-R1"), std::string::npos);
  EXPECT_EQ(model.Text().find("DeepSeek-R1"), std::string::npos);

  const Trace trace = MakeTrace({Request({1, 2}), Request({1, 2})});
  Rig rig;
  ReplaySettings settings = Settings();
  settings.ttft.kv_bytes_per_token = 1'000'000;
  const ReplayResult result = rig.Run(trace, settings);
  const double load_ms =
      Millis(settings.ttft.Load(1024, result.totals.loaded_bytes, result.totals.load_time));
  EXPECT_GT(load_ms, 1000 * Millis(result.totals.load_time)) << "the KV is 8 million times as much";
  EXPECT_GE(result.latencies.ttft_cached.max_ms(), 0.99 * load_ms);
}

TEST(TraceReplayTest, EveryWrongByteIsCounted) {
  const Trace trace = MakeTrace({Request({1, 2})});
  Rig rig;
  std::string value(kBlockBytes, '\0');
  FillBlock(1, std::as_writable_bytes(std::span(value)));
  rig.store.Set(KeyOf(1), value);
  value[3] = static_cast<char>(value[3] ^ 1);
  rig.store.Set(KeyOf(2), value);  // another block's bytes
  const ReplayResult result = rig.Run(trace, Settings());
  EXPECT_EQ(result.totals.arrived_blocks, 2u);
  EXPECT_GT(result.totals.wrong_bytes, kBlockBytes / 2);
  EXPECT_EQ(result.totals.wrong_blocks, 1u);
}

TEST(TraceReplayTest, FailuresAreMissesCountedByCode) {
  const Trace trace = MakeTrace({Request({1, 2, 3}), Request({1, 2, 3})});
  Rig rig;
  rig.store.FailKey(KeyOf(2), StatusCode::kUnavailable);
  const ReplayResult result = rig.Run(trace, Settings());
  EXPECT_EQ(result.totals.requests, 2u);
  EXPECT_EQ(result.totals.hit_blocks, 1u);
  EXPECT_EQ(result.totals.ideal_blocks, 3u);
  EXPECT_EQ(result.totals.errors.at("lookup UNAVAILABLE"), 2u);
  EXPECT_EQ(result.totals.errors.at("save UNAVAILABLE"), 2u);
  EXPECT_NEAR(result.totals.DeltaPoints(), 100.0 * 2 / 6, 1e-9);
}

TEST(TraceReplayTest, EachRequestIsKeptWithItsFailures) {
  const Trace trace = MakeTrace({Request({1, 2, 3}), Request({1, 2, 3})});
  Rig rig;
  rig.store.FailKey(KeyOf(2), StatusCode::kUnavailable);
  ReplaySettings settings = Settings();
  settings.keep_requests = true;
  const ReplayResult result = rig.Run(trace, settings);
  ASSERT_EQ(result.requests.size(), 2u);
  EXPECT_EQ(result.requests[0].arrived_blocks, 0u);
  EXPECT_EQ(result.requests[0].load, Duration::zero());
  const RequestOutcome& second = result.requests[1];
  EXPECT_TRUE(second.done);
  EXPECT_EQ(second.blocks, 3u);
  EXPECT_EQ(second.arrived_blocks, 1u);
  EXPECT_GT(second.load, Duration::zero());
  EXPECT_EQ(second.failed_gets, 1u);
  EXPECT_EQ(second.failed_saves, 1u);
  EXPECT_EQ(second.wrong_bytes, 0u);
  EXPECT_TRUE(rig.Run(trace, Settings()).requests.empty());
}

TEST(TraceReplayTest, MarksCarryTheSumsSoFar) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 10; ++i) requests.push_back(Request({0, i + 1}));
  const Trace trace = MakeTrace(std::move(requests));
  Rig rig;
  ReplaySettings settings = Settings();
  settings.mark_every_requests = 3;
  TraceReplay replay(&trace, &rig.cache, &rig.ideal, settings);
  std::vector<uint64_t> marks, hits;
  uint64_t progress = 0;
  replay.Run(
      [&](const ReplayTotals& totals) {
        marks.push_back(totals.requests);
        hits.push_back(totals.hit_blocks);
      },
      [&](uint64_t done) { progress = done; }, [] { return false; });
  EXPECT_EQ(marks, (std::vector<uint64_t>{3, 6, 9, 10}));
  EXPECT_EQ(hits, (std::vector<uint64_t>{2, 5, 8, 9}));
  EXPECT_EQ(progress, 10u);
}

TEST(TraceReplayTest, ManyWorkersReplayEachRequestOnce) {
  std::vector<TraceRequest> requests;
  for (uint64_t i = 0; i < 200; ++i) requests.push_back(Request({0, i % 20 + 1, i + 100}));
  const Trace trace = MakeTrace(std::move(requests));
  Rig rig;
  ReplaySettings settings = Settings();
  settings.concurrency = 4;
  const ReplayResult result = rig.Run(trace, settings);
  EXPECT_EQ(result.totals.requests, 200u);
  EXPECT_EQ(result.totals.blocks, 600u);
  EXPECT_EQ(result.totals.wrong_bytes, 0u);
  EXPECT_GE(result.totals.hit_blocks, 200u);
  EXPECT_FALSE(result.totals.interrupted);
}

TEST(TraceReplayTest, StopsWhileWaitingForARequestThatIsNotDue) {
  const Trace trace = MakeTrace({Request({1}), Request({2}, 0, 3'600'000)});
  Rig rig;
  ReplaySettings settings = Settings();
  settings.speedup = 1;
  TraceReplay replay(&trace, &rig.cache, &rig.ideal, settings);
  uint64_t done = 0;
  const ReplayResult result =
      replay.Run([](const ReplayTotals&) {}, [&](uint64_t requests) { done = requests; },
                 [&] { return done == 1; });
  EXPECT_TRUE(result.totals.interrupted);
  EXPECT_EQ(result.totals.requests, 1u);
}

TEST(TraceReplayTest, TimestampsAreDividedByTheSpeedup) {
  const Trace trace = MakeTrace({Request({1}), Request({2}, 0, 50'000)});
  Rig rig;
  ReplaySettings settings = Settings();
  settings.speedup = 1000;
  const ReplayResult result = rig.Run(trace, settings);
  EXPECT_GE(result.totals.elapsed, std::chrono::milliseconds(50));
  EXPECT_GE(result.totals.lag_max, Duration::zero());
}

}  // namespace
}  // namespace ems::bench
