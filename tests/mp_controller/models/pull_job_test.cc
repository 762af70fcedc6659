// What must hold: a job is over when every server of the view has finished under that view or has
// failed, and at its deadline in any case; it names each server that has failed, and what it says
// of itself is what its servers have said, with bounds.
#include "mp_controller/models/pull_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr TimePoint kBegin{seconds(10)};
constexpr uint64_t kUnixMs = 1'700'000'000'000;

// Of servers "a", "b", … with these boot ids.
std::shared_ptr<const DhtView> View(uint64_t epoch, const std::vector<uint64_t>& boots,
                                    bool frozen = false) {
  std::vector<NodeInfo> nodes(boots.size());
  for (size_t i = 0; i < boots.size(); ++i) {
    nodes[i].id = NodeId(static_cast<uint32_t>(i + 1));
    nodes[i].name = std::string(1, static_cast<char>('a' + i));
    nodes[i].boot_id = boots[i];
  }
  return *DhtView::Make(ViewVersion(1, epoch), nodes, SlotTable(), frozen);
}

v1::ReportPullRequest Report(uint64_t boot, uint64_t epoch, uint64_t blocks, bool finished) {
  v1::ReportPullRequest report;
  report.set_boot_id(boot);
  report.set_term(1);
  report.set_epoch(epoch);
  report.set_finished(finished);
  report.set_blocks_done(blocks);
  report.set_bytes_done(10 * blocks);
  report.set_source_bytes(8 * blocks);
  report.set_promoted_bytes(2 * blocks);
  report.set_shared_bytes(blocks);
  report.set_read_bytes(9 * blocks);
  return report;
}

v1::ReportPullRequest Failed(uint64_t boot, StatusCode code, const std::string& why) {
  v1::ReportPullRequest report = Report(boot, 1, 0, false);
  report.set_error_code(static_cast<uint32_t>(code));
  report.set_error(why);
  return report;
}

class PullJobTest : public ::testing::Test {
 protected:
  PullJobTest() { job.Begin(1, 0, seconds(60), kBegin); }
  void Take(const v1::ReportPullRequest& report) { job.Take(report, OkStatus(), now); }
  std::optional<PullJob::End> Judge(const std::shared_ptr<const DhtView>& view,
                                    bool checked = true) {
    return job.Judge(view.get(), checked, now);
  }
  // How it has ended: state and text, or "runs".
  std::string Text(const std::shared_ptr<const DhtView>& view) {
    const auto end = Judge(view);
    if (!end) return "runs";
    return end->state == v1::PULL_DONE ? "done" : "failed: " + ToString(end->why);
  }
  PullJob job;
  TimePoint now = kBegin + seconds(1);
};

TEST_F(PullJobTest, IsOverWhenEveryServerOfTheViewHasFinishedUnderIt) {
  EXPECT_EQ(Text(nullptr), "runs");
  EXPECT_EQ(Text(View(1, {})), "runs");
  Take(Report(1, 1, 3, true));
  EXPECT_EQ(Text(View(1, {1})), "done");
  EXPECT_EQ(Text(View(1, {1}, true)), "runs") << "frozen";
  EXPECT_EQ(Text(View(1, {1, 2})), "runs");
  EXPECT_EQ(Text(View(2, {1})), "runs") << "it has not looked at that view yet";
  EXPECT_FALSE(Judge(View(1, {1}), false)) << "a file is still being compared";
  Take(Report(2, 1, 3, false));
  EXPECT_EQ(Text(View(1, {1, 2})), "runs");
  Take(Report(2, 1, 4, true));
  EXPECT_EQ(Text(View(1, {1, 2})), "done");
}

TEST_F(PullJobTest, AServerThatIsSilentIsWaitedForUntilTheDeadlineAndNamed) {
  Take(Report(1, 1, 3, true));
  Take(Report(3, 1, 7, false));
  now = kBegin + seconds(60) - Duration(1);
  EXPECT_EQ(Text(View(1, {1, 2, 3})), "runs");
  now = kBegin + seconds(60);
  const auto end = Judge(View(1, {1, 2, 3}));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->state, v1::PULL_FAILED);
  EXPECT_EQ(end->why.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Message(end->why),
            "server \"b\": has said nothing of this job; server \"c\": not ready after 60 s: "
            "7 blocks in DRAM, heard of 59.0 s ago");
  ASSERT_EQ(end->failures.named.size(), 2U);
  EXPECT_EQ(end->failures.named[0].server, "b");
}

TEST_F(PullJobTest, WithoutServersOrWithFilesNotComparedItsDeadlineHoldsAsWell) {
  now = kBegin + seconds(60);
  EXPECT_THAT(Text(nullptr), HasSubstr("there is no server"));
  Take(Report(1, 1, 3, true));
  const auto end = Judge(View(1, {1}), false);
  ASSERT_TRUE(end);
  EXPECT_THAT(ToString(end->why), HasSubstr("still being compared"));
  EXPECT_THAT(Text(View(1, {1}, true)), Not("runs")) << "frozen";
}

TEST_F(PullJobTest, AServerThatLeavesIsNotWaitedFor) {
  Take(Report(1, 1, 3, true));
  Take(Report(2, 1, 1, false));
  EXPECT_EQ(Text(View(1, {1, 2})), "runs");
  EXPECT_EQ(Text(View(2, {1})), "runs") << "what it was to do is the other's now";
  Take(Report(1, 2, 4, true));
  EXPECT_EQ(Text(View(2, {1})), "done");
}

TEST_F(PullJobTest, AServerThatFailedAndLeavesFailsNothing) {
  Take(Failed(2, StatusCode::kUnavailable, "refused"));
  Take(Report(1, 2, 4, true));
  EXPECT_EQ(Text(View(2, {1})), "done");
}

TEST_F(PullJobTest, AServerThatJoinsIsWaitedFor) {
  Take(Report(1, 2, 3, true));
  EXPECT_EQ(Text(View(2, {1, 2})), "runs");
  Take(Report(2, 2, 1, true));
  EXPECT_EQ(Text(View(2, {1, 2})), "done");
}

TEST_F(PullJobTest, AServerThatWasRestartedCountsAnew) {
  Take(Report(1, 1, 3, true));
  Take(Failed(2, StatusCode::kUnavailable, "refused"));
  EXPECT_EQ(Text(View(2, {1, 12})), "runs");
  Take(Report(1, 2, 3, true));
  EXPECT_EQ(Text(View(2, {1, 12})), "runs") << "its blocks are gone, and so is its error";
  Take(Report(12, 2, 1, true));
  EXPECT_EQ(Text(View(2, {1, 12})), "done");
}

TEST_F(PullJobTest, OneServersErrorLetsTheOthersGoOnAndIsNamedAtTheEnd) {
  Take(Failed(2, StatusCode::kPermissionDenied, "source answered 403"));
  Take(Report(1, 1, 1, false));
  EXPECT_EQ(Text(View(1, {1, 2, 3})), "runs");
  v1::PullJob said;
  job.Fill(View(1, {1, 2, 3}).get(), now, 100, 1000, &said);
  ASSERT_EQ(said.failures_size(), 1) << "it is seen meanwhile";
  EXPECT_EQ(said.failures(0).server(), "b");
  EXPECT_EQ(said.time_left_ms(), 59'000U);
  Take(Report(1, 1, 3, true));
  Take(Report(3, 1, 3, true));
  EXPECT_EQ(Text(View(1, {1, 2, 3})),
            "failed: PERMISSION_DENIED: server \"b\": source answered 403");
}

// Ids tell who came first, which nobody looks for in a list.
TEST_F(PullJobTest, ServersThatFailedAreListedByName) {
  std::vector<NodeInfo> nodes(3);
  for (uint32_t i = 0; i < 3; ++i) {
    nodes[i].id = NodeId(i + 1);
    nodes[i].boot_id = i + 1;
    nodes[i].name = std::string(1, static_cast<char>('c' - i));
    Take(Failed(i + 1, StatusCode::kDataLoss, "bad"));
  }
  const auto view = *DhtView::Make(ViewVersion(1, 1), nodes, SlotTable(), false);
  v1::PullJob said;
  job.Fill(view.get(), now, 1, 1, &said);
  ASSERT_EQ(said.failures_size(), 3);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(said.failures(i).server(), std::string(1, static_cast<char>('a' + i)));
}

TEST_F(PullJobTest, AnErrorThatPassesIsForgotten) {
  Take(Failed(2, StatusCode::kUnavailable, "refused"));
  Take(Report(1, 1, 1, false));
  Take(Report(2, 1, 3, true));
  Take(Report(1, 1, 3, true));
  EXPECT_EQ(Text(View(1, {1, 2})), "done");
}

TEST_F(PullJobTest, AReportThatIsRefusedIsItsServersError) {
  job.Take(Report(1, 1, 3, true), Error(StatusCode::kInvalidArgument, "block 9 of 4"), now);
  EXPECT_EQ(Text(View(1, {1})), "failed: INVALID_ARGUMENT: server \"a\": block 9 of 4");
}

TEST_F(PullJobTest, AReportThatWasOvertakenCountsForNothing) {
  v1::ReportPullRequest early = Report(1, 1, 4, true), later = Report(1, 1, 3, false);
  early.set_sequence(1);
  later.set_sequence(2);
  Take(later);
  Take(early);
  EXPECT_EQ(Text(View(1, {1})), "runs") << "a block was dropped again";
  later.set_sequence(3);
  later.set_finished(true);
  Take(later);
  EXPECT_EQ(Text(View(1, {1})), "done");
}

TEST_F(PullJobTest, ManyServersThatFailAreNamedUpToABoundAndTheWorstErrorCounts) {
  std::vector<uint64_t> boots;
  for (uint64_t boot = 1; boot <= 20; ++boot) {
    boots.push_back(boot);
    Take(Failed(boot, boot == 5 ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                std::string(1000, 'x')));
  }
  const auto end = Judge(View(1, boots));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->failures.named.size(), PullJob::kFailuresMax);
  EXPECT_EQ(end->failures.left_out, 4U);
  EXPECT_EQ(end->why.code(), StatusCode::kFailedPrecondition) << "the source has changed";
  EXPECT_THAT(ToString(end->why), HasSubstr("and 4 more servers"));
  EXPECT_LT(Message(end->why).size(), 6000U);
}

TEST_F(PullJobTest, SaysWhatItsServersHaveSaidAndNoMoreThanThereIs) {
  Take(Report(1, 1, 3, true));
  Take(Report(2, 1, 4, true));
  Take(Report(2, 1, 5, true));
  v1::PullJob said;
  job.Fill(View(2, {1}).get(), kBegin + seconds(2), 100, 1000, &said);
  EXPECT_EQ(said.blocks_done(), 3U) << "what a server that is gone had done is to be done again";
  EXPECT_EQ(said.bytes_done(), 30U);
  EXPECT_EQ(said.source_bytes(), 64U) << "but it was read";
  EXPECT_EQ(said.promoted_bytes(), 16U);
  EXPECT_EQ(said.shared_bytes(), 8U);
  EXPECT_EQ(said.read_bytes(), 72U);
  EXPECT_EQ(said.elapsed_ms(), 2000U);
  job.state = v1::PULL_DONE;
  job.ended = kBegin + seconds(1);
  job.Fill(View(2, {1}).get(), kBegin + seconds(2), 7, 75, &said);
  EXPECT_EQ(said.blocks_done(), 7U);
  EXPECT_EQ(said.bytes_done(), 75U);
  EXPECT_EQ(said.elapsed_ms(), 1000U);
}

TEST_F(PullJobTest, WhoAsksForMoreTimeGetsItUpToADayInAll) {
  EXPECT_FALSE(job.Extend(Duration(0), now)) << "did not say";
  EXPECT_FALSE(job.Extend(seconds(1), now)) << "it has more";
  EXPECT_TRUE(job.Extend(seconds(120), now));
  EXPECT_EQ(job.deadline, now + seconds(120));
  EXPECT_TRUE(job.Extend(hours(24), now));
  EXPECT_EQ(job.deadline, kBegin + hours(24));
}

TEST_F(PullJobTest, ItsStateIsTakenUpAsItWasSaved) {
  job.number = 7;
  job.state = v1::PULL_FAILED;
  job.priority = 3;
  job.why = Error(StatusCode::kDataLoss, "damaged");
  job.failures.named = {{"b", Error(StatusCode::kDataLoss, "damaged")}};
  job.failures.left_out = 2;
  v1::PullJob saved;
  job.Save(now, kUnixMs, &saved);
  PullJob again;
  again.Restore(saved, now, kUnixMs);
  EXPECT_EQ(again.number, 7U);
  EXPECT_EQ(again.state, v1::PULL_FAILED);
  EXPECT_EQ(again.priority, 3U);
  EXPECT_EQ(again.why, job.why);
  ASSERT_EQ(again.failures.named.size(), 1U);
  EXPECT_EQ(again.failures.named[0].server, "b");
  EXPECT_EQ(again.failures.named[0].why, job.why);
  EXPECT_EQ(again.failures.left_out, 2U);
  EXPECT_FALSE(again.running());
}

TEST_F(PullJobTest, ARestartOfTheControllerDoesNotMoveTheDeadline) {
  v1::PullJob saved;
  job.Save(now, kUnixMs, &saved);
  PullJob again;
  const TimePoint later{hours(5)};  // another machine's clock, 20 s later by the wall
  again.Restore(saved, later, kUnixMs + 20'000);
  EXPECT_EQ(again.deadline, later + seconds(39));
  again.Restore(saved, later, kUnixMs + 100'000);
  EXPECT_EQ(again.deadline, later) << "it is over";
  again.Restore(saved, later, 0);
  EXPECT_EQ(again.deadline, later + PullJob::kTimeoutMost) << "a wall clock that was set back";
  saved.set_deadline_unix_ms(0);
  again.Restore(saved, later, kUnixMs);
  EXPECT_EQ(again.deadline, later + PullJob::kTimeout) << "of an older controller";
}

}  // namespace
}  // namespace ems::controller
