// What must hold: operations, one key or several, and paths are told apart.
#include "mp_sdk/internal/call_latencies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::internal {
namespace {

using wire::Op;
using namespace std::chrono_literals;

TEST(CallLatenciesTest, EachKindIsListedOnceThereWasOne) {
  CallLatencies latencies;
  EXPECT_TRUE(latencies.Calls().empty());
  latencies.Record(Op::kGet, 1, CallPath::kOneSided, 300ns);
  latencies.Record(Op::kGetRange, 1, CallPath::kOneSided, 300ns);
  latencies.Record(Op::kGet, 2, CallPath::kSocket, 30us);
  latencies.Record(Op::kPut, 1, CallPath::kSocket, 20us);
  latencies.Record(Op::kExists, 7, CallPath::kOneSided, 1us);
  latencies.Record(Op::kRemove, 1, CallPath::kSocket, 20us);
  std::vector<std::string> kinds;
  for (const CallLatency& call : latencies.Calls())
    kinds.push_back(call.op + " " + call.path + " " + std::to_string(call.latencies.count));
  EXPECT_THAT(kinds, ::testing::UnorderedElementsAre("get one_sided 2", "multi_get socket 1",
                                                     "put socket 1", "multi_exists one_sided 1",
                                                     "remove socket 1"));
}

}  // namespace
}  // namespace ems::internal
