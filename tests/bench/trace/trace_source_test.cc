// What must hold: without a choice it is the trace that comes with EMS, a made one says how it was
// made, and its length is bounded.
#include "bench/trace/trace_source.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(TraceSourceTest, TakesTheFirstRequestsOfTheTraceThatComesWithEms) {
  TraceChoice choice{.requests = 7};
  const auto trace = TakeTrace(&choice);
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  EXPECT_EQ(trace->requests.size(), 7U);
  EXPECT_NE(choice.path.find("conversation_trace.jsonl.gz"), std::string::npos) << choice.path;
}

TEST(TraceSourceTest, MakesOneAndSaysHow) {
  TraceChoice choice{.shape = "steep", .seed = 5, .requests = 20};
  const auto trace = TakeTrace(&choice);
  ASSERT_TRUE(trace.ok()) << ToString(trace.status());
  EXPECT_EQ(trace->requests.size(), 20U);
  EXPECT_EQ(choice.path, "made, steep, seed 5");
  choice = {.shape = "cyclic", .requests = kMadeRequestsMax + 1};
  EXPECT_EQ(TakeTrace(&choice).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::bench
