// What must hold: a job is over when every server of the view has finished under that view, and
// what it says of itself is what its servers have said, with bounds.
#include "mp_controller/pull_job.h"

#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::controller {
namespace {

using std::chrono::seconds;

// Of servers with these boot ids.
std::shared_ptr<const DhtView> View(uint64_t epoch, const std::vector<uint64_t>& boots,
                                    bool frozen = false) {
  std::vector<NodeInfo> nodes(boots.size());
  for (size_t i = 0; i < boots.size(); ++i) {
    nodes[i].id = NodeId(static_cast<uint32_t>(i + 1));
    nodes[i].name = std::to_string(i);
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

TEST(PullJobTest, IsOverWhenEveryServerOfTheViewHasFinishedUnderIt) {
  PullJob job;
  job.state = v1::PULL_RUNNING;
  EXPECT_FALSE(job.FinishedBy(nullptr));
  EXPECT_FALSE(job.FinishedBy(View(1, {}).get()));
  job.Take(Report(1, 1, 3, true));
  EXPECT_TRUE(job.FinishedBy(View(1, {1}).get()));
  EXPECT_FALSE(job.FinishedBy(View(1, {1}, true).get())) << "frozen";
  EXPECT_FALSE(job.FinishedBy(View(1, {1, 2}).get()));
  EXPECT_FALSE(job.FinishedBy(View(2, {1}).get())) << "it has not looked at that view yet";
  job.Take(Report(2, 1, 3, false));
  EXPECT_FALSE(job.FinishedBy(View(1, {1, 2}).get()));
  job.Take(Report(2, 1, 4, true));
  EXPECT_TRUE(job.FinishedBy(View(1, {1, 2}).get()));
}

TEST(PullJobTest, SaysWhatItsServersHaveSaidAndNoMoreThanThereIs) {
  PullJob job;
  job.state = v1::PULL_RUNNING;
  job.began = TimePoint(seconds(10));
  job.Take(Report(1, 1, 3, true));
  job.Take(Report(2, 1, 4, true));
  job.Take(Report(2, 1, 5, true));
  v1::PullJob said;
  job.Fill(View(2, {1}).get(), TimePoint(seconds(12)), 100, 1000, &said);
  EXPECT_EQ(said.blocks_done(), 3U) << "what a server that is gone had done is to be done again";
  EXPECT_EQ(said.bytes_done(), 30U);
  EXPECT_EQ(said.source_bytes(), 64U) << "but it was read";
  EXPECT_EQ(said.promoted_bytes(), 16U);
  EXPECT_EQ(said.shared_bytes(), 8U);
  EXPECT_EQ(said.read_bytes(), 72U);
  EXPECT_EQ(said.elapsed_ms(), 2000U);
  job.state = v1::PULL_DONE;
  job.ended = TimePoint(seconds(11));
  job.Fill(View(2, {1}).get(), TimePoint(seconds(12)), 7, 75, &said);
  EXPECT_EQ(said.blocks_done(), 7U);
  EXPECT_EQ(said.bytes_done(), 75U);
  EXPECT_EQ(said.elapsed_ms(), 1000U);
}

TEST(PullJobTest, ItsStateIsTakenUpAsItWasSaved) {
  PullJob job;
  job.number = 7;
  job.state = v1::PULL_FAILED;
  job.priority = 3;
  job.why = Error(StatusCode::kDataLoss, "damaged");
  v1::PullJob saved;
  job.Save(&saved);
  PullJob again;
  again.Restore(saved);
  EXPECT_EQ(again.number, 7U);
  EXPECT_EQ(again.state, v1::PULL_FAILED);
  EXPECT_EQ(again.priority, 3U);
  EXPECT_EQ(again.why, job.why);
  EXPECT_FALSE(again.running());
}

}  // namespace
}  // namespace ems::controller
