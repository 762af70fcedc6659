// What must hold: a window's sums are those of its requests alone, the ideal LRU loses what it is
// told to at that request, and only owners that stay have bytes to move.
#include "bench/elastic/elastic_figures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ems::bench {
namespace {

RequestOutcome ElasticOutcome(uint32_t blocks, uint32_t arrived) {
  return {.done = true, .blocks = blocks, .arrived_blocks = arrived};
}

Trace ElasticTrace(const std::vector<std::vector<uint64_t>>& requests) {
  Trace trace;
  for (const auto& blocks : requests) {
    trace.requests.push_back(
        {.timestamp_ms = 7, .input_tokens = blocks.size() * kTraceBlockTokens, .blocks = blocks});
  }
  return trace;
}

TEST(ElasticFiguresTest, SumsTheRequestsOfTheWindowAlone) {
  std::vector<RequestOutcome> requests = {ElasticOutcome(4, 4), ElasticOutcome(4, 1),
                                          ElasticOutcome(4, 2), ElasticOutcome(4, 4)};
  requests[1].failed_gets = 2;
  requests[1].load = std::chrono::milliseconds(3);
  requests[2].failed_saves = 1;
  requests[2].wrong_bytes = 5;
  requests[3].wrong_bytes = 100;
  const WindowSums sums = SumOf(requests, {1, 3});
  EXPECT_DOUBLE_EQ(sums.HitPercent(), 37.5);
  EXPECT_EQ(sums.failed_gets, 2u);
  EXPECT_EQ(sums.failed_saves, 1u);
  EXPECT_EQ(sums.wrong_bytes, 5u);
  EXPECT_EQ(sums.gets.count(), 1u) << "a request without a hit has no Get";
  EXPECT_EQ(SumOf(requests, {3, 9}).blocks, 4u);
}

TEST(ElasticFiguresTest, HitRateIsOfTheRequestsThatWereDueInASecond) {
  const std::vector<RequestOutcome> requests = {ElasticOutcome(4, 4), ElasticOutcome(4, 2),
                                                ElasticOutcome(4, 1), RequestOutcome(),
                                                RequestOutcome()};
  const std::vector<double> seconds = HitPercentBySecond(requests, 2);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_DOUBLE_EQ(seconds[0], 75);
  EXPECT_DOUBLE_EQ(seconds[1], 25);
  EXPECT_TRUE(std::isnan(seconds[2])) << "none was done";
}

TEST(ElasticFiguresTest, APartOfATraceHasTimesOfItsOwn) {
  const Trace part = TracePart(ElasticTrace({{1}, {1, 2}, {1, 3}}), 1, 9, 4);
  ASSERT_EQ(part.requests.size(), 2u);
  EXPECT_EQ(part.requests[0].timestamp_ms, 0u);
  EXPECT_EQ(part.requests[1].timestamp_ms, 250u);
  EXPECT_EQ(part.unique_blocks, 3u);
  EXPECT_EQ(part.block_references, 4u);
  EXPECT_EQ(part.request_blocks_max, 2u);
  EXPECT_EQ(TracePart(part, 1, 2, 0).requests[0].timestamp_ms, 0u);
}

TEST(ElasticFiguresTest, TheIdealLosesInFrontOfTheRequest) {
  const Trace trace = ElasticTrace({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}});
  const std::vector<Loss> losses = {{2, [](uint64_t block) { return block == 2; }}};
  EXPECT_EQ(IdealHits(trace, 100, 10, losses), (std::vector<uint32_t>{0, 3, 1, 3}));
  EXPECT_EQ(IdealHits(trace, 100, 10, {}), (std::vector<uint32_t>{0, 3, 3, 3}));
  EXPECT_DOUBLE_EQ(HitPercentOf(trace, std::vector<uint32_t>{0, 3, 1, 3}, {1, 3}), 100.0 * 4 / 6);
}

TEST(ElasticFiguresTest, BytesToMoveAreTheShareOfSlotsThatStayingOwnersLose) {
  const auto view = [](uint64_t epoch, uint32_t nodes, uint64_t boot_of_2) {
    std::vector<NodeInfo> infos;
    for (uint32_t i = 1; i <= nodes; ++i) {
      NodeInfo& info = infos.emplace_back();
      info.id = NodeId(i);
      info.name = fmt::format("n{}", i);
      info.boot_id = 1;
    }
    if (nodes > 1) infos[1].boot_id = boot_of_2;
    SlotTable slots;
    for (uint32_t i = 0; i < kSlotCount; ++i)
      slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(1 + i % nodes));
    auto made = DhtView::Make(ViewVersion(1, epoch), std::move(infos), slots, false);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  };
  const std::map<std::string, uint64_t> held = {{"n1", 1000}, {"n2", 4000}};
  // Of two owners each has half of its slots afterwards.
  EXPECT_DOUBLE_EQ(BytesToMove(*view(1, 2, 1), *view(2, 4, 1), held), 2500);
  EXPECT_DOUBLE_EQ(BytesToMove(*view(1, 2, 1), *view(2, 2, 1), held), 0);
  // Gone, or another process: it has nothing.
  EXPECT_DOUBLE_EQ(BytesToMove(*view(1, 2, 1), *view(2, 1, 1), held), 0);
  EXPECT_DOUBLE_EQ(BytesToMove(*view(1, 2, 1), *view(2, 4, 9), held), 500);
}

}  // namespace
}  // namespace ems::bench
