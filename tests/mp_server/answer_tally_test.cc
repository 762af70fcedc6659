// What must hold: each look-up counts once in its own namespace; what is neither a hit nor a miss,
// and what looks nothing up, does not count.
#include "mp_server/answer_tally.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using ::testing::HasSubstr;
using wire::ItemResult;
using wire::ItemTier;
using wire::Op;
using wire::WireStatus;

class AnswerTallyTest : public ::testing::Test {
 protected:
  AnswerTallyTest() {
    NamespaceTable table;
    table.version = 1;
    for (const auto& [id, name] : {std::pair(1, "kv"), std::pair(2, "models")}) {
      NamespaceInfo info;
      info.ref = {NamespaceId(static_cast<uint32_t>(id)), 1};
      info.name = name;
      table.by_id[info.ref.id] = info;
    }
    store_.SetNamespaces(table, 1.0);
  }
  TieredNamespace Open(uint32_t id) { return store_.Open({NamespaceId(id), 1}); }
  LookupCounts Counted(const std::string& name_space) {
    return metrics_.lookups().For(name_space).Of(LookupPath::kSocket);
  }
  static std::vector<ItemResult> Results(std::initializer_list<WireStatus> statuses) {
    std::vector<ItemResult> results;
    for (const WireStatus status : statuses) {
      results.emplace_back().status = status;
      if (status == WireStatus::kOk) results.back().value_bytes = 500;
    }
    return results;
  }

  SegmentPool pool_{SmallPool(4 * kMiB)};
  ObjectStore dram_{ObjectStore::Options{.pool = &pool_}};
  TieredStore store_{&dram_, nullptr};
  MetricsRegistry registry_;
  ServerMetrics metrics_{&registry_};
  AnswerTally tally_{&metrics_};
};

TEST_F(AnswerTallyTest, HitsAndMissesCountInTheNamespaceThatWasAsked) {
  std::vector<ItemResult> mixed =
      Results({WireStatus::kOk, WireStatus::kMiss, WireStatus::kMiss, WireStatus::kWrongOwner});
  tally_.OnAnswer(Op::kMultiGet, mixed, Open(1));
  mixed[0].tier = ItemTier::kSsd;
  tally_.OnAnswer(Op::kGetRange, std::span(mixed).first(1), Open(2));
  tally_.OnAnswer(Op::kMultiExists, mixed, Open(1));
  EXPECT_EQ(Counted("kv").hits, 1u);
  EXPECT_EQ(Counted("kv").misses, 2u) << "the other owner counts the last key";
  EXPECT_EQ(Counted("kv").bytes, 500u);
  EXPECT_EQ(Counted("kv").found, 1u);
  EXPECT_EQ(Counted("kv").absent, 2u);
  EXPECT_EQ(Counted("models").hits, 1u);
  EXPECT_EQ(Counted("models").bytes, 500u);
  EXPECT_EQ(metrics_.ssd_hits(), 1u) << "a look is no read";
  EXPECT_THAT(registry_.Render(), HasSubstr("ems_server_read_bytes_total 500\n"));
}

TEST_F(AnswerTallyTest, ARequestIsTimedUnderTheSlowestTierOfItsAnswer) {
  wire::FrameHeader request;
  const auto served = [&](Op op) {
    request.op = op;
    tally_.OnServed(request, {.took = std::chrono::microseconds(10), .local = true});
  };
  const auto count = [](const std::string& labels, int calls) {
    return HasSubstr("ems_server_request_seconds_count{" + labels + ",transport=\"unix\"} " +
                     std::to_string(calls) + "\n");
  };
  std::vector<ItemResult> results = Results({WireStatus::kOk, WireStatus::kOk, WireStatus::kMiss});
  results[0].tier = ItemTier::kSsd;
  results[1].tier = ItemTier::kDram;
  tally_.OnAnswer(Op::kMultiGet, results, Open(1));
  served(Op::kMultiGet);
  served(Op::kMultiGet);  // one that found nothing, or came to no answer of its own
  served(Op::kPut);
  request.flags = wire::kFlagDurableSsd;
  served(Op::kPut);
  const std::string text = registry_.Render();
  EXPECT_THAT(text, count(R"(op="multi_get",tier="ssd")", 1));
  EXPECT_THAT(text, count(R"(op="multi_get",tier="none")", 1));
  EXPECT_THAT(text, count(R"(op="put",tier="dram")", 1));
  EXPECT_THAT(text, count(R"(op="put",tier="ssd")", 1));
}

TEST_F(AnswerTallyTest, WhatLooksNothingUpIsNoLookUp) {
  tally_.OnAnswer(Op::kRemove, Results({WireStatus::kOk}), Open(1));
  tally_.OnAnswer(Op::kMultiRemove, Results({WireStatus::kMiss}), Open(1));
  tally_.OnAnswer(Op::kGet, Results({WireStatus::kStaleNamespace}), Open(9));
  EXPECT_EQ(Counted("kv").hits + Counted("kv").found, 0u);
  EXPECT_EQ(Counted("kv").misses + Counted("kv").absent, 0u);
  EXPECT_THAT(registry_.Render(),
              HasSubstr("ems_server_answers_total{op=\"Get\",status=\"stale namespace\"} 1\n"));
}

}  // namespace
}  // namespace ems::server
