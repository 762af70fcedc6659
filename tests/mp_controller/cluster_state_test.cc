#include "mp_controller/cluster_state.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;

// One life of a controller on a folder, without threads or sockets.
struct Life {
  explicit Life(const std::string& folder, ManualClock* clock_in) : clock(clock_in) {
    auto opened = ControllerStore::Open(folder);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store = std::move(*opened);
    state = std::make_unique<ClusterState>(
        MembershipOptions{}, ClusterState::Parts{clock, store.get(), &publisher, &metrics});
    EXPECT_TRUE(state->Start("default").ok());
    state->Listen();
  }
  uint32_t Register(const std::string& name, uint64_t boot, uint64_t lineage = 0) {
    v1::RegisterRequest request;
    request.mutable_node()->set_name(name);
    request.mutable_node()->set_boot_id(boot);
    request.mutable_node()->set_lineage(lineage);
    request.mutable_node()->set_data_address("h:1");
    request.mutable_node()->set_capacity_bytes(1 << 30);
    v1::RegisterReply reply;
    EXPECT_TRUE(state->Register(request, &reply).ok());
    return reply.node_id();
  }
  v1::HeartbeatReply Beat(uint32_t id, uint64_t boot, ViewVersion installed) {
    v1::HeartbeatRequest request;
    request.set_node_id(id);
    request.set_boot_id(boot);
    request.set_term(installed.term());
    request.set_epoch(installed.epoch());
    v1::HeartbeatReply reply;
    EXPECT_TRUE(state->Heartbeat(request, &reply).ok());
    return reply;
  }
  bool Ahead(int node) {
    v1::ListNodesReply list;
    EXPECT_TRUE(state->ListNodes({}, &list).ok());
    return list.nodes(node).ahead();
  }
  void Run(Duration time) {
    for (Duration past{}; past < time; past += milliseconds(100)) {
      clock->Advance(milliseconds(100));
      state->Tick();
    }
  }

  ManualClock* clock;
  MetricsRegistry registry;
  ControllerMetrics metrics{&registry};
  ViewPublisher publisher{16};
  std::unique_ptr<ControllerStore> store;
  std::unique_ptr<ClusterState> state;
};

TEST(ClusterStateTest, RestartRepublishesTheSameOwnersUnderANewTerm) {
  TempDir dir;
  ManualClock clock;
  ViewCache::View before;
  uint32_t id_b = 0;
  {
    Life life(dir.path(), &clock);
    life.Register("a", 1);
    id_b = life.Register("b", 1);
    life.Run(milliseconds(500));
    before = life.publisher.view();
    EXPECT_EQ(before->nodes().size(), 2u);
  }
  Life life(dir.path(), &clock);
  const auto after = life.publisher.view();
  EXPECT_EQ(after->version(),
            ViewVersion(before->version().term() + 1, before->version().epoch() + 1));
  EXPECT_EQ(after->slots(), before->slots());
  EXPECT_EQ(life.Register("b", 2), id_b) << "a name keeps its id";
  EXPECT_GT(life.Register("c", 1), id_b);
}

TEST(ClusterStateTest, HowLongSlotsHaveBeenHeldSurvivesRestartsOfAll) {
  TempDir dir;
  ManualClock clock;
  ViewCache::View first;
  {
    Life life(dir.path(), &clock);
    life.Register("a", 1, 70);
    life.Run(milliseconds(500));
    first = life.publisher.view();
    ASSERT_TRUE(first->history().known());
    EXPECT_EQ(first->history().since(SlotId(3)), first->version().epoch());
    life.Run(std::chrono::seconds(20));  // its lease ends: the view freezes
    EXPECT_TRUE(life.publisher.view()->frozen());
  }
  Life life(dir.path(), &clock);
  life.Register("a", 2, 70);
  life.Run(std::chrono::seconds(2));
  const auto view = life.publisher.view();
  ASSERT_EQ(view->nodes().size(), 1u);
  EXPECT_EQ(view->nodes()[0].boot_id, 2u);
  EXPECT_FALSE(view->frozen());
  EXPECT_GT(view->version().epoch(), first->version().epoch() + 2);
  EXPECT_EQ(view->history(), first->history()) << "nobody else has had a slot";
  life.Register("a", 2, 70);  // lives on, until its next life is not damped any more
  life.Run(milliseconds(3500));
  life.Register("a", 3, 71);
  life.Run(std::chrono::seconds(1));
  EXPECT_GT(life.publisher.view()->history().since(SlotId(3)), view->version().epoch())
      << "another storage";
}

TEST(ClusterStateTest, DefaultNamespaceIsMadeOnceOnly) {
  TempDir dir;
  ManualClock clock;
  v1::Namespace ns;
  v1::GetNamespaceRequest get;
  get.set_name("default");
  {
    Life life(dir.path(), &clock);
    ASSERT_TRUE(life.state->GetNamespace(get, &ns).ok());
    v1::DeleteNamespaceRequest request;
    request.set_name("default");
    v1::DeleteNamespaceReply reply;
    ASSERT_TRUE(life.state->DeleteNamespace(request, &reply).ok());
  }
  Life life(dir.path(), &clock);
  EXPECT_EQ(life.state->GetNamespace(get, &ns).code(), StatusCode::kNotFound)
      << "what an operator deleted stays deleted";
}

TEST(ClusterStateTest, RemovedNameGetsAnIdOfItsOwnLater) {
  TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  const uint32_t id = life.Register("a", 1);
  life.Register("b", 1);
  life.Run(milliseconds(500));
  v1::LeaveRequest leave;
  leave.set_node_id(id);
  leave.set_boot_id(1);
  v1::LeaveReply left;
  ASSERT_TRUE(life.state->Leave(leave, &left).ok());
  life.Run(milliseconds(500));
  v1::RemoveNodeRequest remove;
  remove.set_name("a");
  v1::RemoveNodeReply removed;
  ASSERT_TRUE(life.state->RemoveNode(remove, &removed).ok());
  EXPECT_GT(life.Register("a", 2), id);
}

// Others may have owned slots in views that this store has not seen: nothing older is kept.
TEST(ClusterStateTest, AStoreThatIsOlderThanAServersViewBeginsANewHistory) {
  for (const bool of_an_earlier_term : {false, true}) {
    SCOPED_TRACE(of_an_earlier_term);
    TempDir dir;
    ManualClock clock;
    Life life(dir.path(), &clock);
    const uint32_t a = life.Register("a", 1, 70);
    const uint32_t b = life.Register("b", 1, 71);
    life.Run(milliseconds(500));
    const auto before = life.publisher.view();
    const ViewVersion own = before->version();
    (void)life.Beat(a, 1, {});
    (void)life.Beat(a, 1, own);
    EXPECT_EQ(life.publisher.view(), before);
    EXPECT_FALSE(life.Ahead(0));
    const ViewVersion other = of_an_earlier_term ? ViewVersion(own.term() - 1, own.epoch() + 40)
                                                 : ViewVersion(own.term() + 3, own.epoch() + 40);
    EXPECT_EQ(life.Beat(a, 1, other).epoch(), own.epoch()) << "the server sees what it is offered";
    const auto after = life.publisher.view();
    EXPECT_GT(after->version(), std::max(own, other));
    EXPECT_GT(after->version().epoch(), other.epoch() + 1);
    EXPECT_NE(after->history().id(), before->history().id());
    EXPECT_EQ(after->history().since(SlotId(3)), after->version().epoch());
    EXPECT_EQ(after->slots(), before->slots());
    EXPECT_TRUE(life.Ahead(0));
    EXPECT_FALSE(life.Ahead(1));
    (void)life.Beat(a, 1, other);
    (void)life.Beat(b, 1, own);
    (void)life.Beat(b, 1, after->version());
    EXPECT_EQ(life.publisher.view(), after) << "once is enough";
    EXPECT_FALSE(life.Ahead(1)) << "that one was made here";
    life.Register("a", 2, 72);
    EXPECT_FALSE(life.Ahead(0));
  }
}

TEST(ClusterStateTest, ViewsOfEarlierTermsAreKnownAfterARestart) {
  TempDir dir;
  ManualClock clock;
  uint32_t id = 0;
  ViewVersion last;
  {
    Life life(dir.path(), &clock);
    id = life.Register("a", 1, 70);
    life.Run(milliseconds(500));
    last = life.publisher.view()->version();
  }
  Life life(dir.path(), &clock);
  const auto view = life.publisher.view();
  (void)life.Beat(id, 1, last);
  EXPECT_EQ(life.publisher.view(), view);
  EXPECT_FALSE(life.Ahead(0));
}

TEST(ClusterStateTest, ListNodesShowsSlotsStateAndUsage) {
  TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  const uint32_t id = life.Register("a", 1);
  life.Run(milliseconds(500));
  v1::HeartbeatRequest beat;
  beat.set_node_id(id);
  beat.set_boot_id(1);
  beat.mutable_usage()->set_objects(42);
  v1::HeartbeatReply reply;
  ASSERT_TRUE(life.state->Heartbeat(beat, &reply).ok());
  EXPECT_TRUE(reply.admitted());
  clock.Advance(milliseconds(700));
  v1::ListNodesReply list;
  ASSERT_TRUE(life.state->ListNodes({}, &list).ok());
  ASSERT_EQ(list.nodes_size(), 1);
  EXPECT_EQ(list.nodes(0).slots(), kSlotCount);
  EXPECT_EQ(list.nodes(0).node().state(), v1::NODE_LIVE);
  EXPECT_EQ(list.nodes(0).usage().objects(), 42u);
  EXPECT_EQ(list.nodes(0).heartbeat_age_ms(), 700u);
}

}  // namespace
}  // namespace ems::controller
