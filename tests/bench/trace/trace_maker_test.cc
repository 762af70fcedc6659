// What must hold: the same seed gives the same trace, sums are right, a steep trace hits an LRU
// that holds a part of it, and a cyclic one misses it until it holds all.
#include "bench/trace/trace_maker.h"

#include <gtest/gtest.h>

#include <unordered_set>

#include "bench/trace/ideal_lru.h"

namespace ems::bench {
namespace {

double IdealPercent(const Trace& trace, uint64_t percent) {
  IdealLru lru(trace.unique_blocks * percent / 100, 1);
  size_t hits = 0;
  for (const TraceRequest& request : trace.requests) hits += lru.Request(request.blocks);
  return 100 * static_cast<double>(hits) / static_cast<double>(trace.block_references);
}

TEST(TraceMakerTest, SumsAreThoseOfTheRequests) {
  for (const std::string& name : TraceShapeNames()) {
    const Trace trace = MakeTrace(TraceShapeOf(name), 500, 7);
    ASSERT_EQ(trace.requests.size(), 500U);
    uint64_t references = 0, tokens = 0, before = 0;
    size_t most = 0;
    std::unordered_set<uint64_t> unique;
    for (const TraceRequest& request : trace.requests) {
      EXPECT_EQ(request.input_tokens, request.blocks.size() * kTraceBlockTokens);
      EXPECT_GE(request.timestamp_ms, before);
      before = request.timestamp_ms;
      references += request.blocks.size();
      tokens += request.input_tokens;
      most = std::max(most, request.blocks.size());
      unique.insert(request.blocks.begin(), request.blocks.end());
    }
    EXPECT_EQ(trace.block_references, references) << name;
    EXPECT_EQ(trace.input_tokens, tokens) << name;
    EXPECT_EQ(trace.request_blocks_max, most) << name;
    EXPECT_EQ(trace.unique_blocks, unique.size()) << name;
  }
}

TEST(TraceMakerTest, ASeedGivesOneTrace) {
  const auto blocks = [](uint64_t seed) {
    return MakeTrace(TraceShape::kSteep, 50, seed).requests.back().blocks;
  };
  EXPECT_EQ(blocks(3), blocks(3));
  EXPECT_NE(blocks(3), blocks(4));
}

TEST(TraceMakerTest, ShapesAreWhatTheirNamesSay) {
  const Trace steep = MakeTrace(TraceShape::kSteep, 2000, 1);
  EXPECT_GT(IdealPercent(steep, 10), 40);
  const Trace cyclic = MakeTrace(TraceShape::kCyclic, 2000, 1);
  EXPECT_EQ(IdealPercent(cyclic, 10), 0);
  EXPECT_EQ(IdealPercent(cyclic, 50), 0);
  EXPECT_GT(IdealPercent(cyclic, 100), 60);
}

TEST(TraceMakerTest, OneRequestIsATrace) {
  EXPECT_EQ(MakeTrace(TraceShape::kCyclic, 1, 1).requests.size(), 1U);
}

}  // namespace
}  // namespace ems::bench
