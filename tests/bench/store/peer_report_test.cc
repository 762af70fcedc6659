// What must hold: EMS is compared with the better peer of each round; what was not measured, of EMS
// or of a peer, passes no gate; each size, number of callers and operation has a gate.
#include "bench/store/peer_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ems::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void Add(SideResults* results, const char* subject, SideOp op, uint64_t bytes, uint32_t callers,
         const std::vector<double>& ops) {
  TrialResult trial;
  trial.subject = subject;
  trial.op = op;
  trial.value_bytes = bytes;
  trial.threads = callers;
  for (const double one : ops) trial.rounds.push_back({.ops_per_second = one});
  results->trials.push_back(std::move(trial));
}

// EMS has 120 operations a second, the better peer of each round 100.
SideResults GoodResults() {
  SideResults results;
  for (const uint64_t bytes : kPeerSizes) {
    for (const SideOp op : {SideOp::kGet, SideOp::kPutOrdinary}) {
      for (const uint32_t callers : {1U, 2U}) {
        Add(&results, "EMS", op, bytes, callers, {120, 120, 120});
        Add(&results, "memcached", op, bytes, callers, {100, 100, 20});
        Add(&results, "redis", op, bytes, callers, {30, 30, 100});
      }
    }
  }
  return results;
}

std::string Printed(const std::function<void(Report*)>& print) {
  Report report("store", "", GateSet::kAll);
  ::testing::internal::CaptureStdout();
  print(&report);
  return ::testing::internal::GetCapturedStdout();
}

TEST(PeerReportTest, TheBetterPeerOfEachRoundIsTheMeasure) {
  const SideResults results = GoodResults();
  EXPECT_DOUBLE_EQ(VsBetterPeer(results, SideOp::kGet, kMiB, 2), 1.2);
  EXPECT_TRUE(std::isnan(VsBetterPeer(results, SideOp::kGet, kMiB, 8)));
}

TEST(PeerReportTest, EachSizeNumberOfCallersAndOperationHasAGate) {
  const std::string text = Printed([](Report* report) {
    JudgePeers(GoodResults(), {1, 2}, report);
  });
  for (const char* line : {"gate get_4KiB_1_callers_vs_peer 1.2 >= 1 pass",
                           "gate put_9MiB_2_callers_vs_peer 1.2 >= 1 pass"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("fail")));
}

TEST(PeerReportTest, AGateFailsWhereEmsIsSlowerOrAPeerWasNotMeasured) {
  SideResults slow = GoodResults();
  for (RoundFigures& round : slow.trials[0].rounds) round.ops_per_second = 90;
  EXPECT_THAT(Printed([&](Report* report) { JudgePeers(slow, {1}, report); }),
              HasSubstr("gate get_4KiB_1_callers_vs_peer 0.9 >= 1 fail"));
  SideResults alone = GoodResults();
  std::erase_if(alone.trials, [](const TrialResult& trial) { return trial.subject == "redis"; });
  const std::string text = Printed([&](Report* report) { JudgePeers(alone, {1, 2}, report); });
  EXPECT_THAT(text, HasSubstr("gate get_4KiB_1_callers_vs_peer nan >= 1 fail"));
  EXPECT_THAT(text, Not(HasSubstr("pass")));
}

TEST(PeerReportTest, TablesShowEverySideAndTheRatioOfEmsAlone) {
  Report report("store", "");
  ::testing::internal::CaptureStdout();
  ReportPeers(GoodResults(), &report);
  const std::string text = ::testing::internal::GetCapturedStdout();
  for (const char* part : {"Get", "Put", "memcached", "redis", "1.20"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto& rows = report.json()["get"];
  ASSERT_EQ(rows.size(), std::size(kPeerSizes) * 2 * 3);
  for (const auto& row : rows) EXPECT_EQ(row.contains("vs_better_peer"), row["side"] == "EMS");
}

}  // namespace
}  // namespace ems::bench
