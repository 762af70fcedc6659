// What must hold: what other servers have read is heard of, also that it is certain now, and when
// the controller does not answer that is said.
#include "mp_server/models/digest_follower.h"

#include <gtest/gtest.h>

#include "tests/mp_server/models/model_rig.h"
#include "tests/support/eventually.h"

namespace ems::server {
namespace {

using DigestFollowerTest = ModelRigTest;

TEST_F(DigestFollowerTest, LearnsWhatIsCertain) {
  const uint32_t id = Add("v1");
  Begin(id);
  ASSERT_EQ(Tell(id, 0), OkStatus());
  ASSERT_TRUE(digests_.Learn(id));
  const ModelPull::Task task = Next(id);
  EXPECT_EQ(task.digest, Digest(0));
  EXPECT_TRUE(task.certain);
}

TEST_F(DigestFollowerTest, FollowsToTheEndWhatIsNot) {
  const uint32_t id = Add("v1", true);
  Begin(id, true);
  for (uint32_t block = 0; block < kBlocks; ++block) ASSERT_EQ(Tell(id, block), OkStatus());
  ASSERT_TRUE(digests_.Follow(id, Duration(0)));
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const ModelPull::Task task = Next(id);
    EXPECT_EQ(task.digest, Digest(block));
    EXPECT_FALSE(task.certain);
  }
}

TEST_F(DigestFollowerTest, AFileThatIsFoundRightIsLearned) {
  const uint32_t id = Add("v1", true);
  Begin(id, true);
  v1::ReportSumRequest sum;
  sum.set_model_id(id);
  sum.set_sum(ToHex(*Md5(AsBytes(Content()))));
  for (uint32_t block = 0; block < kBlocks; ++block)
    sum.mutable_digests()->append(AsText(Digest(block)));
  ASSERT_EQ(models_.ReportSum(sum, controller::Soon()), OkStatus());
  Thread hear("hear", [this] { digests_.Run(); });
  EXPECT_TRUE(testing::Eventually([&] {
    bool verified = false;
    table_.With(id, [&](ModelPull& pull) { verified = !pull.unverified(); });
    return verified;
  }));
  table_.Stop();
  hear.Join();
  EXPECT_TRUE(Next(id).certain);
}

TEST_F(DigestFollowerTest, SaysWhenTheControllerDoesNotAnswer) {
  const uint32_t id = Add("v1", true);
  Begin(id, true);
  table_.models.Close();
  EXPECT_FALSE(digests_.Learn(id));
  EXPECT_FALSE(digests_.Follow(id, Duration(0)));
  EXPECT_TRUE(digests_.Follow(id + 1, Duration(0))) << "nobody works at it";
}

}  // namespace
}  // namespace ems::server
