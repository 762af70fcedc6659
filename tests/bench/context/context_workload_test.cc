// What must hold: workloads share what they say they share, and nothing else; the overflow does not
// fit by the stated 5 %.
#include "bench/context/context_workload.h"

#include <gtest/gtest.h>

#include <set>

#include "bench/trace/ideal_lru.h"

namespace ems::bench {
namespace {

WorkloadSettings Small() {
  return {.rounds = 3,
          .prompts = 40,
          .prompt_tokens = 2048,
          .shared_tokens = 1024,
          .turn_tokens = 512,
          .seed = 7};
}

// Leading blocks that one LRU of the workload's capacity has, by round, in percent.
std::vector<double> IdealByRound(const Workload& workload) {
  IdealLru lru(workload.capacity_blocks, 1);
  std::vector<double> percent;
  const auto& requests = workload.trace.requests;
  for (size_t at = 0; at < requests.size(); at += workload.requests_per_round) {
    uint64_t hits = 0, blocks = 0;
    for (size_t i = at; i < at + workload.requests_per_round; ++i) {
      hits += lru.Request(requests[i].blocks);
      blocks += requests[i].blocks.size();
    }
    percent.push_back(100.0 * static_cast<double>(hits) / static_cast<double>(blocks));
  }
  return percent;
}

TEST(ContextWorkloadTest, SumsAreThoseOfTheRequests) {
  for (const std::string& name : WorkloadNames()) {
    const auto workload = MakeWorkload(name, Small());
    ASSERT_TRUE(workload.ok()) << workload.status();
    const Trace& trace = workload->trace;
    EXPECT_EQ(workload->name, name);
    const size_t times = name == "popular" ? 4 : 1;
    EXPECT_EQ(trace.requests.size(), 120U * times);
    EXPECT_EQ(workload->requests_per_round, 40U * times);
    uint64_t references = 0, tokens = 0;
    std::set<uint64_t> unique;
    for (const TraceRequest& request : trace.requests) {
      references += request.blocks.size();
      tokens += request.input_tokens;
      unique.insert(request.blocks.begin(), request.blocks.end());
      EXPECT_LE(request.blocks.size(), trace.request_blocks_max);
      EXPECT_EQ(std::set<uint64_t>(request.blocks.begin(), request.blocks.end()).size(),
                request.blocks.size());
    }
    EXPECT_EQ(trace.block_references, references);
    EXPECT_EQ(trace.input_tokens, tokens);
    EXPECT_EQ(trace.unique_blocks, unique.size());
  }
}

TEST(ContextWorkloadTest, DocumentsAreThereFromTheSecondRoundOn) {
  const std::vector<double> percent = IdealByRound(*MakeWorkload("long-doc-qa", Small()));
  EXPECT_EQ(percent[0], 0);
  EXPECT_DOUBLE_EQ(percent[1], 80);  // 4 of 5 blocks: the question is new
  EXPECT_DOUBLE_EQ(percent[2], 80);
}

TEST(ContextWorkloadTest, ChatsShareTheSystemPromptAndGrow) {
  const std::vector<double> percent = IdealByRound(*MakeWorkload("chat", Small()));
  EXPECT_NEAR(percent[0], 100.0 * 39 * 2 / (40 * 3), 1e-9);  // the first user has nothing
  EXPECT_DOUBLE_EQ(percent[1], 75);
  EXPECT_DOUBLE_EQ(percent[2], 80);
}

TEST(ContextWorkloadTest, RandomPromptsHaveNothingInCommon) {
  for (const double percent : IdealByRound(*MakeWorkload("random", Small()))) EXPECT_EQ(percent, 0);
}

TEST(ContextWorkloadTest, TheOverflowIsFivePercentAndDefeatsAnLru) {
  const auto workload = MakeWorkload("overflow", Small());
  EXPECT_NEAR(static_cast<double>(workload->trace.unique_blocks) /
                  static_cast<double>(workload->capacity_blocks),
              1.05, 0.01);
  for (const double percent : IdealByRound(*workload)) EXPECT_LT(percent, 5);
}

TEST(ContextWorkloadTest, PopularDocumentsAreTwiceWhatFitsAndAnLruKeepsSome) {
  const auto workload = MakeWorkload("popular", Small());
  EXPECT_NEAR(static_cast<double>(workload->trace.unique_blocks) /
                  static_cast<double>(workload->capacity_blocks),
              2, 0.01);
  const double last = IdealByRound(*workload).back();
  EXPECT_GT(last, 50);
  EXPECT_LT(last, 90);
}

TEST(ContextWorkloadTest, TheSameSeedMakesTheSameRequests) {
  const auto a = MakeWorkload("long-doc-qa", Small());
  const auto b = MakeWorkload("long-doc-qa", Small());
  WorkloadSettings other = Small();
  other.seed = 8;
  const auto c = MakeWorkload("long-doc-qa", other);
  bool differs = false;
  for (size_t i = 0; i < a->trace.requests.size(); ++i) {
    EXPECT_EQ(a->trace.requests[i].blocks, b->trace.requests[i].blocks);
    differs |= a->trace.requests[i].blocks != c->trace.requests[i].blocks;
  }
  EXPECT_TRUE(differs);
}

TEST(ContextWorkloadTest, NonsenseIsRefused) {
  EXPECT_EQ(MakeWorkload("chit-chat", Small()).status().code(), StatusCode::kInvalidArgument);
  for (uint64_t WorkloadSettings::*const field :
       {&WorkloadSettings::rounds, &WorkloadSettings::prompts, &WorkloadSettings::prompt_tokens}) {
    for (const uint64_t bad : {uint64_t{0}, uint64_t{1} << 40}) {
      WorkloadSettings settings = Small();
      settings.*field = bad;
      EXPECT_EQ(MakeWorkload("random", settings).status().code(), StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace ems::bench
