// What must hold: a controller hears its servers before it goes on with a stored view, and by a
// store that is an older copy nobody gets a lease before an operator says so.
#include <gtest/gtest.h>

#include "proto/controller.pb.h"
#include "tests/mp_controller/cluster_life.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

// A controller that was started with a store which has a view. Servers "a" and "b" are in it.
class RestartedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ClusterLife life(dir.path(), &clock);
    a_ = life.Register("a", 1, 70);
    b_ = life.Register("b", 1, 71);
    life.Run(milliseconds(500));
    (void)life.Beat(a_, 1, life.publisher.view()->version());
    (void)life.Beat(b_, 1, life.publisher.view()->version());
    life.Run(milliseconds(500));
    before_ = life.publisher.view();
    ASSERT_EQ(before_->nodes().size(), 2u);
  }
  // Of a view that was made after the store was copied.
  ViewVersion Later() const { return {before_->version().term(), before_->version().epoch() + 40}; }

  const TempDir dir;
  ManualClock clock;
  uint32_t a_ = 0, b_ = 0;
  ViewCache::View before_;
};

TEST_F(RestartedTest, ServersAreHeardBeforeLeasesAreGivenAndViewsMade) {
  ClusterLife life(dir.path(), &clock);
  EXPECT_EQ(life.publisher.view()->version(), before_->version()) << "for clients that come";
  v1::HeartbeatReply reply;
  const uint32_t c = life.Announce("c", 1, 0);
  const auto beats = [&](uint32_t id) {
    return life.TryBeat(id, 1, before_->version(), {}, false, &reply).code();
  };
  for (int beat = 0; beat < 29; ++beat) {
    life.Run(milliseconds(100));
    for (const uint32_t id : {a_, b_, c}) ASSERT_EQ(beats(id), StatusCode::kUnavailable) << beat;
    ASSERT_EQ(life.publisher.view()->version(), before_->version()) << beat;
  }
  life.Run(milliseconds(100));
  EXPECT_EQ(life.publisher.view()->version(),
            ViewVersion(before_->version().term() + 1, before_->version().epoch() + 1));
  EXPECT_TRUE(life.Beat(a_, 1, before_->version()).renewed());
  life.Run(milliseconds(500));
  EXPECT_NE(life.publisher.view()->Find(NodeId(c)), nullptr);
  EXPECT_FALSE(life.IsOld());
}

TEST_F(RestartedTest, WhileTheControllerStoodStillItHeardNobody) {
  ClusterLife life(dir.path(), &clock);
  life.Run(std::chrono::seconds(1));
  clock.Advance(std::chrono::seconds(20));
  life.Run(std::chrono::seconds(1));
  v1::HeartbeatReply reply;
  EXPECT_EQ(life.TryBeat(a_, 1, before_->version(), {}, false, &reply).code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(life.publisher.view()->version(), before_->version());
  life.Run(std::chrono::seconds(2));
  EXPECT_TRUE(life.Beat(a_, 1, before_->version()).renewed());
}

// With leases shorter than the listening, a server that was heard while the controller listened
// still counts as live.
TEST_F(RestartedTest, NobodyGoesDownWhileItListens) {
  const TempDir folder;
  const MembershipOptions options{
      .heartbeat = milliseconds(100), .lease = milliseconds(600), .settle = Duration::zero()};
  ViewCache::View before;
  uint32_t a = 0, b = 0;
  {
    ClusterLife life(folder.path(), &clock, options);
    a = life.Register("a", 1);
    b = life.Register("b", 1);
    life.Run(milliseconds(500));
    before = life.publisher.view();
    ASSERT_EQ(before->nodes().size(), 2u);
  }
  ClusterLife life(folder.path(), &clock, options);
  v1::HeartbeatReply reply;
  for (Duration past{}; past < ListenFirst(options.heartbeat); past += milliseconds(300)) {
    life.Run(milliseconds(300));
    for (const uint32_t id : {a, b})
      (void)life.TryBeat(id, 1, before->version(), {}, false, &reply);
  }
  life.Run(milliseconds(300));
  const auto after = life.publisher.view();
  EXPECT_EQ(after->version(),
            ViewVersion(before->version().term() + 1, before->version().epoch() + 1));
  EXPECT_EQ(after->slots(), before->slots());
  EXPECT_FALSE(after->frozen());
  for (const uint32_t id : {a, b}) EXPECT_TRUE(life.Beat(id, 1, before->version()).renewed());
}

TEST_F(RestartedTest, OneMemberWithALaterViewMeansThatNobodyGetsALeaseAndNoViewIsMade) {
  for (const bool while_listening : {true, false}) {
    SCOPED_TRACE(while_listening);
    ClusterLife life(dir.path(), &clock);
    if (!while_listening) life.FinishListening();
    const auto own = life.publisher.view();
    EXPECT_FALSE(life.Beat(a_, 1, before_->version(), Later()).renewed());
    EXPECT_TRUE(life.IsOld());
    EXPECT_FALSE(life.Beat(b_, 1, own->version()).renewed());
    EXPECT_FALSE(life.Beat(a_, 1, own->version()).renewed()) << "it said so before";
    EXPECT_EQ(life.AcceptAhead().code(), StatusCode::kUnavailable) << "leases of before";
    (void)life.Register("c", 1);
    life.Leave(b_, 1);
    life.Run(std::chrono::seconds(20));
    EXPECT_EQ(life.publisher.view(), own);
    EXPECT_EQ(life.metrics.store_is_old.value(), 1);
    EXPECT_FALSE(life.Beat(a_, 1, own->version()).renewed());
    life.Announce("b", 1, 71);  // it is there again
  }
}

// Two lives of one store gave one number to two views. The server was restarted, and has installed
// none since: what its folder says is all that shows it.
TEST_F(RestartedTest, AnotherViewOfAKnownNumberShowsThatTheStoreIsOld) {
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  const auto own = life.publisher.view();
  life.Announce("a", 2, 70, own->cluster());
  for (const uint64_t known : {uint64_t{0}, own->Fingerprint()}) {
    life.highest_fingerprint = known;
    (void)life.Beat(a_, 2, {}, own->version());
    EXPECT_FALSE(life.IsOld()) << known;
  }
  life.highest_fingerprint = own->Fingerprint() + 1;
  (void)life.Beat(a_, 2, {}, own->version());
  EXPECT_TRUE(life.IsOld());
}

TEST_F(RestartedTest, AnOperatorAcceptsAndAllGoOnWithANewHistory) {
  ClusterLife life(dir.path(), &clock);
  (void)life.Beat(a_, 1, Later());
  for (int beat = 0; beat < 7; ++beat) {
    life.Run(std::chrono::seconds(1));
    EXPECT_FALSE(life.Beat(a_, 1, Later()).renewed());
    EXPECT_FALSE(life.Beat(b_, 1, before_->version()).renewed());
  }
  ASSERT_EQ(life.AcceptAhead(), OkStatus());
  const auto after = life.publisher.view();
  EXPECT_GT(after->version().epoch(), Later().epoch() + 1);
  EXPECT_NE(after->history().id(), before_->history().id());
  EXPECT_FALSE(life.Beat(a_, 1, Later()).renewed()) << "it has not followed yet";
  EXPECT_FALSE(life.IsOld());
  EXPECT_FALSE(life.Beat(b_, 1, before_->version()).renewed()) << "what it keeps may be old";
  EXPECT_TRUE(life.Beat(a_, 1, after->version()).renewed());
  EXPECT_TRUE(life.Beat(b_, 1, after->version()).renewed());
  life.Run(std::chrono::seconds(1));
  EXPECT_EQ(life.publisher.view(), after) << "nobody went down by being refused";
}

TEST_F(RestartedTest, NothingIsAcceptedBeforeLongerLeasesOfAnEarlierLifeHaveEnded) {
  { ClusterLife longer(dir.path(), &clock, {.lease = std::chrono::seconds(60)}); }
  ClusterLife life(dir.path(), &clock);
  (void)life.Beat(a_, 1, Later());
  life.Run(std::chrono::seconds(60));
  EXPECT_EQ(life.AcceptAhead().code(), StatusCode::kUnavailable);
  life.Run(std::chrono::seconds(2));
  EXPECT_EQ(life.AcceptAhead(), OkStatus());
}

// Its servers and namespaces are not those of now.
TEST_F(RestartedTest, ByAnOldStoreNothingElseIsDecided) {
  ClusterLife life(dir.path(), &clock);
  (void)life.Beat(a_, 1, Later());
  life.Run(std::chrono::seconds(10));
  v1::AcceptLossReply accepted;
  const Status loss = life.state->AcceptLoss({}, &accepted);
  EXPECT_NE(Message(loss).find("an older copy"), std::string_view::npos) << loss;
  v1::Namespace ns;
  v1::CreateNamespaceRequest create;
  create.set_name("new");
  EXPECT_EQ(life.state->CreateNamespace(create, &ns).code(), StatusCode::kFailedPrecondition);
  v1::UpdateNamespaceRequest update;
  update.set_name("default");
  EXPECT_EQ(life.state->UpdateNamespace(update, &ns).code(), StatusCode::kFailedPrecondition);
  v1::DeleteNamespaceRequest remove;
  remove.set_name("default");
  v1::DeleteNamespaceReply removed;
  EXPECT_EQ(life.state->DeleteNamespace(remove, &removed).code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(life.AcceptAhead(), OkStatus());
  EXPECT_EQ(life.state->CreateNamespace(create, &ns), OkStatus());
}

// The id that the store would give may be in use.
TEST_F(RestartedTest, NoNamespaceChangesBeforeServersWereHeard) {
  ClusterLife life(dir.path(), &clock);
  v1::Namespace ns;
  v1::CreateNamespaceRequest create;
  create.set_name("new");
  const Status refused = life.state->CreateNamespace(create, &ns);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(refused).find("starting: "), std::string_view::npos) << refused;
  (void)life.Beat(a_, 1, Later());
  EXPECT_EQ(life.state->CreateNamespace(create, &ns).code(), StatusCode::kFailedPrecondition);
  life.Run(std::chrono::seconds(10));
  EXPECT_EQ(life.state->CreateNamespace(create, &ns).code(), StatusCode::kFailedPrecondition);
}

TEST_F(RestartedTest, NamespacesChangeWhenServersWereHeard) {
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  v1::Namespace ns;
  v1::CreateNamespaceRequest create;
  create.set_name("new");
  EXPECT_EQ(life.state->CreateNamespace(create, &ns), OkStatus());
}

// No view was made since the copy, but a namespace, and values were stored in it: the next one gets
// its id.
TEST_F(RestartedTest, ATableOfNamespacesThatItHasNotMadeShowsAnOlderCopy) {
  for (const bool same_version : {false, true}) {
    SCOPED_TRACE(same_version);
    ClusterLife life(dir.path(), &clock);
    v1::ClusterUpdate update;
    WatchCursor cursor;
    ASSERT_TRUE(update.ParseFromString(*life.publisher.Next(&cursor).namespaces));
    life.table = update.namespaces().version() + (same_version ? 0 : 1);
    life.table_fingerprint = 4711;
    EXPECT_FALSE(life.Beat(a_, 1, before_->version()).renewed());
    EXPECT_TRUE(life.IsOld());
    EXPECT_TRUE(life.Ahead(0));
    life.Run(std::chrono::seconds(10));
    ASSERT_EQ(life.AcceptAhead(), OkStatus());
    const auto after = life.publisher.view();
    EXPECT_NE(after->history().id(), before_->history().id());
    EXPECT_TRUE(life.Beat(a_, 1, after->version()).renewed()) << "it gets the new table soon";
    EXPECT_FALSE(life.IsOld());
    before_ = after;
  }
}

// Those who were there have the table of the life whose store is lost, and what was stored by it.
TEST_F(RestartedTest, NamespacesOfTheLifeThatIsLostAreNotTakenForNewOnes) {
  v1::Namespace lost;
  uint64_t last = 0;
  {
    const TempDir original;
    ClusterLife life(original.path(), &clock);
    v1::CreateNamespaceRequest create;
    create.set_name("lost");
    ASSERT_EQ(life.state->CreateNamespace(create, &lost), OkStatus());
    v1::ClusterUpdate update;
    WatchCursor cursor;
    ASSERT_TRUE(update.ParseFromString(*life.publisher.Next(&cursor).namespaces));
    last = update.namespaces().version();
  }
  {
    ClusterLife life(dir.path(), &clock);
    (void)life.Beat(a_, 1, Later());
    life.Run(std::chrono::seconds(10));
    ASSERT_EQ(life.AcceptAhead(), OkStatus());
    v1::ClusterUpdate update;
    WatchCursor cursor;
    ASSERT_TRUE(update.ParseFromString(*life.publisher.Next(&cursor).namespaces));
    EXPECT_GT(update.namespaces().version(), last) << "who watches takes it";
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  v1::Namespace made;
  v1::CreateNamespaceRequest create;
  create.set_name("new");
  ASSERT_EQ(life.state->CreateNamespace(create, &made), OkStatus());
  EXPECT_GE(made.id(), lost.id() + kNumbersSkipped) << "also after another restart";
}

TEST_F(RestartedTest, TheRightStoreGoesOnAsIfNothingHadBeen) {
  {
    ClusterLife old(dir.path(), &clock);
    (void)old.Beat(a_, 1, Later());
    EXPECT_TRUE(old.IsOld());
  }
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  EXPECT_FALSE(life.IsOld());
  EXPECT_TRUE(life.Beat(a_, 1, before_->version()).renewed());
  EXPECT_EQ(life.publisher.view()->history().id(), before_->history().id());
}

TEST_F(RestartedTest, OnlyWhoNamesThisClusterByItselfProvesAnything) {
  ClusterLife life(dir.path(), &clock);
  life.FinishListening();
  const uint32_t unknown = life.Announce("unknown", 1, 0);
  EXPECT_FALSE(life.Beat(unknown, 1, Later()).renewed());
  v1::HeartbeatReply reply;
  EXPECT_FALSE(life.TryBeat(77, 1, Later(), {}, false, &reply).ok()) << "not registered";
  EXPECT_FALSE(life.IsOld());
  EXPECT_TRUE(life.Beat(a_, 1, before_->version()).renewed());
  const uint32_t late = life.Announce("late", 1, 0, before_->cluster());
  EXPECT_FALSE(life.Beat(late, 1, Later()).renewed());
  EXPECT_TRUE(life.IsOld());
  EXPECT_FALSE(life.Beat(a_, 1, before_->version()).renewed());
}

}  // namespace
}  // namespace ems::controller
