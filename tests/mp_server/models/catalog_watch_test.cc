// What must hold: what is asked for or pinned is worked at, by this server's blocks of the view and
// namespace of the moment; what is not wanted any more is let go, and nothing read for it is lost.
#include "mp_server/models/catalog_watch.h"

#include <gtest/gtest.h>

#include "tests/mp_server/models/model_rig.h"

namespace ems::server {
namespace {

using CatalogWatchTest = ModelRigTest;

TEST_F(CatalogWatchTest, WhatIsWantedIsWorkedAtUntilItIsNot) {
  const uint32_t id = Add("v1"), other = Add("v2");
  ASSERT_TRUE(watch_.Look(Duration(0)));
  EXPECT_FALSE(table_.With(id, [](ModelPull&) {})) << "nobody has asked for it";
  Prefetch(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  EXPECT_TRUE(table_.With(id, [](ModelPull& pull) { EXPECT_TRUE(pull.running()); }));
  EXPECT_FALSE(table_.With(other, [](ModelPull&) {}));
  Cancel(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  EXPECT_FALSE(table_.With(id, [](ModelPull&) {}));
}

TEST_F(CatalogWatchTest, ItBeginsWithWhatIsKnown) {
  const uint32_t id = Add("v1"), summed = Add("v2", true);
  ASSERT_EQ(Tell(id, 2), OkStatus());
  ASSERT_EQ(Tell(summed, 1), OkStatus());
  Begin(id);
  Begin(summed, true);
  (void)Next(id);
  (void)Next(id);
  const ModelPull::Task known = Next(id);
  EXPECT_EQ(known.digest, Digest(2));
  EXPECT_TRUE(known.certain);
  EXPECT_FALSE(Next(summed).digest);
  const ModelPull::Task unverified = Next(summed);
  EXPECT_EQ(unverified.digest, Digest(1));
  EXPECT_FALSE(unverified.certain);
}

TEST_F(CatalogWatchTest, ItsBlocksFollowTheViewAndTheNamespace) {
  const uint32_t id = Add("v1");
  Prefetch(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  const auto has_work = [&] {
    bool any = false;
    table_.With(id, [&](ModelPull& pull) {
      const auto task = pull.Next();
      any = task.has_value();
      if (task) pull.GiveBack(*task);
    });
    return any;
  };
  watch_.FollowView();
  EXPECT_FALSE(has_work()) << "there is no namespace";
  MakeNamespace();
  watch_.FollowView();
  EXPECT_TRUE(has_work());
  Own(2);
  watch_.FollowView();
  EXPECT_FALSE(has_work()) << "all are another server's";
  Own(1);
  watch_.FollowView();
  EXPECT_TRUE(has_work());
}

TEST_F(CatalogWatchTest, WhatWasReadWhenAJobEndedIsToldAndTheNextJobHasIt) {
  const uint32_t id = Add("v1", true);
  Begin(id, true);
  Done(Next(id));
  Cancel(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  Begin(id, true);
  EXPECT_EQ(Next(id).digest, Digest(0));
}

TEST_F(CatalogWatchTest, AViewThatBringsNothingNewAsksForNoDigests) {
  const uint32_t id = Add("v1");
  for (uint32_t block = 0; block < kBlocks; ++block) ASSERT_EQ(Tell(id, block), OkStatus());
  Begin(id);
  const DigestFollower::Asked begun = digests_.asked();
  EXPECT_EQ(begun.digests, kBlocks);
  for (const uint32_t owner : {1, 2, 1, 1, 2, 1}) {
    Own(owner);
    watch_.FollowView();
  }
  EXPECT_EQ(digests_.asked().calls, begun.calls);
  EXPECT_EQ(Next(id).digest, Digest(0)) << "they are kept";
}

TEST_F(CatalogWatchTest, BlocksThatComeWithAViewAreReadAsOthersReadThemAndTheRestIsNotAskedFor) {
  Own(2);
  const uint32_t id = Add("v1");
  ASSERT_EQ(Tell(id, 0), OkStatus());
  ASSERT_EQ(Tell(id, 1), OkStatus());
  Begin(id);
  const DigestFollower::Asked begun = digests_.asked();
  ASSERT_EQ(Tell(id, 2), OkStatus());
  Own(1);
  watch_.FollowView();
  EXPECT_EQ(digests_.asked().calls, begun.calls + 1);
  EXPECT_EQ(digests_.asked().digests, begun.digests + 1) << "what is new";
  EXPECT_EQ(Next(id).digest, Digest(0));
  EXPECT_EQ(Next(id).digest, Digest(1));
  EXPECT_EQ(Next(id).digest, Digest(2));
  EXPECT_FALSE(Next(id).digest);
}

TEST_F(CatalogWatchTest, TheNextJobOfAVersionIsFollowed) {
  const uint32_t id = Add("v1");
  Prefetch(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  EXPECT_TRUE(table_.With(id, [](ModelPull&) {}));
  Cancel(id);
  Prefetch(id);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  table_.With(id, [](ModelPull& pull) { EXPECT_EQ(pull.job(), 2U); });
}

TEST_F(CatalogWatchTest, AVersionThatIsRemovedIsLetGo) {
  const uint32_t id = Add("v1"), other = Add("v2");
  Prefetch(id);
  Prefetch(other);
  ASSERT_TRUE(watch_.Look(Duration(0)));
  ASSERT_EQ(models_.Remove(Ref(id), controller::Soon()), OkStatus());
  ASSERT_TRUE(watch_.Look(Duration(0)));
  EXPECT_FALSE(table_.With(id, [](ModelPull&) {}));
  EXPECT_TRUE(table_.With(other, [](ModelPull&) {}));
}

TEST_F(CatalogWatchTest, WithoutAnAnswerItIsAskedAgain) {
  Add("v1");
  table_.models.Close();
  EXPECT_FALSE(watch_.Look(Duration(0)));
}

// Its versions would be gone, whose blocks are evicted first, and others would be pulled.
TEST_F(CatalogWatchTest, TheListOfAnotherClusterIsNotTaken) {
  const uint32_t id = Add("v1");
  Begin(id);
  LeadElsewhere();
  const uint32_t theirs = Add("v1"), wanted = Add("v2");
  ASSERT_EQ(theirs, id);
  Prefetch(wanted);
  EXPECT_FALSE(watch_.Look(Duration(0)));
  EXPECT_FALSE(watch_.Look(Duration(0)));
  EXPECT_TRUE(table_.With(id, [](ModelPull& pull) { EXPECT_TRUE(pull.running()); }));
  EXPECT_FALSE(table_.With(wanted, [](ModelPull&) {}));
}

}  // namespace
}  // namespace ems::server
