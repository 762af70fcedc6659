// What must hold: the version with the highest priority first, and neither pulls nor checks can
// have all workers, however many there are to do.
#include "mp_server/models/pull_schedule.h"

#include <gtest/gtest.h>

#include "cluster/slot_table.h"
#include "proto/model.pb.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(3), 1};
constexpr uint32_t kFiles = 30;

class PullScheduleTest : public ::testing::Test {
 protected:
  // A version of kFiles files of two blocks, with sums; all of them are this server's.
  ModelPull* Add(uint32_t id, const std::string& url, uint32_t priority = 0) {
    auto manifest = std::make_shared<model::Manifest>();
    manifest->source.url = url;
    for (uint32_t i = 0; i < kFiles; ++i) {
      manifest->files.push_back({std::to_string(i), 20, "t"});
      manifest->files.back().sum = "md5:0123456789abcdef0123456789abcdef";
      manifest->blocks.push_back({i, 0, 10, {static_cast<std::byte>(i)}});
      manifest->blocks.push_back({i, 10, 10, {static_cast<std::byte>(i)}});
    }
    auto& pull = pulls_[id] = std::make_unique<ModelPull>(id, manifest);
    v1::ModelStatus status;
    status.mutable_job()->set_number(1);
    status.mutable_job()->set_priority(priority);
    status.mutable_job()->set_state(v1::PULL_RUNNING);
    (void)pull->Follow(status);
    (void)pull->SetOwned(ViewVersion(1, 1), kNs, std::bitset<kSlotCount>().set());
    return pull.get();
  }
  // The first block of each file has been read; the second is to be brought in.
  void MakeChecksDue(ModelPull* pull) {
    std::vector<ModelPull::Task> tasks;
    while (auto task = pull->Next()) tasks.push_back(*std::move(task));
    for (const auto& task : tasks) {
      if (task.block % 2 == 0)
        (void)pull->Done(task, {});
      else
        pull->GiveBack(task);
    }
  }

  PullSchedule::Pulls pulls_;
  PullSchedule schedule_{8};
};

TEST_F(PullScheduleTest, AnOriginHasSoManyWorkersAndOthersTheRest) {
  Add(1, "http://one/p/");
  Add(2, "http://two/p/");
  EXPECT_EQ(schedule_.workers(), 10U);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(schedule_.Next(pulls_).pull->model_id, 1U);
  EXPECT_EQ(schedule_.Next(pulls_).pull->model_id, 2U);
  schedule_.PullEnded(pulls_[1]->origin());
  EXPECT_EQ(schedule_.Next(pulls_).pull->model_id, 1U);
}

TEST_F(PullScheduleTest, TwoOriginsThatStallLeaveAWorkerToTheThird) {
  Add(1, "http://one/p/", 9);
  Add(2, "http://two/p/", 9);
  Add(3, "http://three/p/");
  std::map<uint32_t, int> given;
  while (const PullSchedule::Work work = schedule_.Next(pulls_)) ++given[work.pull->model_id];
  EXPECT_EQ(given, (std::map<uint32_t, int>{{1, 8}, {2, 1}, {3, 1}}));
}

TEST_F(PullScheduleTest, TheHighestPriorityComesFirst) {
  Add(1, "http://one/p/", 1);
  Add(2, "http://two/p/", 5);
  EXPECT_EQ(schedule_.Next(pulls_).pull->model_id, 2U);
}

// Each of them may wait, as for a controller that does not answer.
TEST_F(PullScheduleTest, ChecksComeFirstAndLeaveWorkersToPulls) {
  MakeChecksDue(Add(1, "http://one/p/"));
  uint32_t checks = 0;
  PullSchedule::Work work = schedule_.Next(pulls_);
  for (; work.check; work = schedule_.Next(pulls_)) ++checks;
  EXPECT_EQ(checks, schedule_.checks_max());
  EXPECT_LT(checks, schedule_.workers());
  EXPECT_TRUE(work.pull) << "although more files wait to be checked";
  schedule_.CheckEnded();
  EXPECT_TRUE(schedule_.Next(pulls_).check);
  EXPECT_FALSE(schedule_.Next(pulls_).check);
}

TEST_F(PullScheduleTest, TheSmallestNumberOfWorkersHasRoomForBoth) {
  PullSchedule schedule(1);
  MakeChecksDue(Add(1, "http://one/p/"));
  EXPECT_TRUE(schedule.Next(pulls_).check);
  EXPECT_TRUE(schedule.Next(pulls_).pull);
  EXPECT_FALSE(schedule.Next(pulls_));
}

// It holds no worker.
TEST_F(PullScheduleTest, ACheckThatWaitsForAnEarlierBlockIsNotGivenOut) {
  ModelPull* const pull = Add(1, "http://one/p/");
  std::vector<ModelPull::Task> tasks;
  while (auto task = pull->Next()) tasks.push_back(*std::move(task));
  for (const auto& task : tasks) {
    if (task.block % 2 == 1)
      (void)pull->Done(task, {});
    else
      pull->GiveBack(task);
  }
  EXPECT_TRUE(schedule_.Next(pulls_).pull);
}

}  // namespace
}  // namespace ems::server
