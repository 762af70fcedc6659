// What must hold: what is new reaches the controller soon, what it refuses is learned from it, and
// what it did not hear goes again.
#include "mp_server/models/pull_reporter.h"

#include <gtest/gtest.h>

#include "tests/mp_server/models/model_rig.h"
#include "tests/support/eventually.h"

namespace ems::server {
namespace {

class PullReporterTest : public ModelRigTest {
 protected:
  bool EventuallyKnown(uint32_t id, uint32_t blocks) {
    return testing::Eventually([&] { return Get(id).blocks_known() == blocks; });
  }
};

TEST_F(PullReporterTest, WhatIsReadIsToldSoon) {
  const uint32_t id = Add("v1");
  Begin(id);
  Thread tell("tell", [this] { reporter_.Run(); });
  Done(Next(id));
  table_.Wake();
  EXPECT_TRUE(EventuallyKnown(id, 1));
  EXPECT_EQ(Get(id).job().source_bytes(), 100U);
  Done(Next(id));
  table_.Wake();
  EXPECT_TRUE(EventuallyKnown(id, 2));
  table_.Stop();
}

// Damaged on the way to one of the two.
TEST_F(PullReporterTest, OtherBytesThanAnotherServerHasReadAreNotTheOnesThatCount) {
  const uint32_t id = Add("v1");
  Begin(id);
  ModelPull::Outcome other;
  other.digest = Digest(77);
  other.source_bytes = 100;
  const ModelPull::Task task = Next(id);
  table_.With(id, [&](ModelPull& pull) { (void)pull.Done(task, std::move(other)); });
  ASSERT_EQ(Tell(id, task.block), OkStatus());
  Thread tell("tell", [this] { reporter_.Run(); });
  table_.Wake();
  EXPECT_TRUE(testing::Eventually([&] {
    std::optional<ModelPull::Task> again;
    table_.With(id, [&](ModelPull& pull) { again = pull.Next(); });
    return again && again->block == task.block && again->digest == Digest(task.block);
  }));
  EXPECT_EQ(Get(id).job().state(), v1::PULL_RUNNING);
  table_.Stop();
}

TEST_F(PullReporterTest, TheLastWordsOfAPullAreSaid) {
  const uint32_t id = Add("v1");
  Begin(id);
  Done(Next(id));
  std::unique_ptr<ModelPull> gone;
  {
    auto locked = table_.state.Lock();
    gone = std::move(locked->pulls.extract(id).mapped());
  }
  reporter_.ReportLast(gone.get());
  EXPECT_FALSE(gone->has_news());
  EXPECT_EQ(Get(id).blocks_known(), 1U);
}

TEST_F(PullReporterTest, WhatWasReadForThisClusterIsNotBoundToAVersionOfAnother) {
  const uint32_t id = Add("v1");
  Begin(id);
  Done(Next(id));
  LeadElsewhere();
  ASSERT_EQ(Add("v1"), id);
  std::unique_ptr<ModelPull> gone;
  {
    auto locked = table_.state.Lock();
    gone = std::move(locked->pulls.extract(id).mapped());
  }
  reporter_.ReportLast(gone.get());
  EXPECT_EQ(Get(id).blocks_known(), 0U);
}

}  // namespace
}  // namespace ems::server
