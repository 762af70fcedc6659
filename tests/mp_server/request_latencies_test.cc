// What must hold: operation, tier and transport are told apart, and nothing is shown that did not
// happen.
#include "mp_server/request_latencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using wire::ItemTier;
using wire::Op;
using namespace std::chrono_literals;

TEST(RequestLatenciesTest, EachKindHasItsOwnSeries) {
  RequestLatencies latencies;
  latencies.Record(Op::kGet, ItemTier::kDram, false, 10us);
  latencies.Record(Op::kGet, ItemTier::kDram, false, 12us);
  latencies.Record(Op::kGet, ItemTier::kSsd, true, 1ms);
  latencies.Record(Op::kPutStaged, ItemTier::kDram, true, 20us);
  latencies.Record(Op::kMultiGetRange, ItemTier::kUnknown, true, 20us);  // the last one but Peers
  std::string text;
  latencies.AppendTo(&text);
  const auto count = [](const std::string& labels, int calls) {
    return HasSubstr("ems_server_request_seconds_count{" + labels + "} " + std::to_string(calls) +
                     "\n");
  };
  EXPECT_THAT(text, count(R"(op="get",tier="dram",transport="tcp")", 2));
  EXPECT_THAT(text, count(R"(op="get",tier="ssd",transport="unix")", 1));
  EXPECT_THAT(text, count(R"(op="put",tier="dram",transport="staged")", 1));
  EXPECT_THAT(text, count(R"(op="multi_get_range",tier="none",transport="unix")", 1));
  EXPECT_THAT(text, Not(HasSubstr("op=\"remove\"")));
}

TEST(RequestLatenciesTest, RequestsThatAreForNoObjectDoNotCount) {
  RequestLatencies latencies;
  for (const Op op :
       {Op::kHello, Op::kPing, Op::kStats, Op::kAttach, Op::kPeers, Op::kScan, Op::kView})
    latencies.Record(op, ItemTier::kUnknown, true, 1ms);
  std::string text;
  latencies.AppendTo(&text);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace ems::server
