// What must hold: a server on this host is attached to without a call's waiting, tried again when
// it goes, and released when the view drops it; nothing a reader is in is freed.
#include "mp_sdk/internal/local_servers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/memory_server.h"
#include "tests/support/shm_peer.h"

namespace ems::internal {
namespace {

using testing::Eventually;
using testing::PoolImage;
using testing::ShmPeer;
using namespace std::chrono_literals;

constexpr NodeId kNode{4};

NodeInfo MakeNode(NodeId id, const std::string& path, uint64_t boot_id = 1) {
  NodeInfo node;
  node.id = id;
  node.name = "server" + std::to_string(id.value());
  node.boot_id = boot_id;
  node.data_address = "127.0.0.1:1";
  node.unix_path = path;
  node.host_id = "here";
  return node;
}

// Slot s belongs to nodes[s % nodes.size()].
ViewCache::View MakeView(uint64_t epoch, std::vector<NodeInfo> nodes) {
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount && !nodes.empty(); ++s) {
    slots.set_owner(SlotId(s), nodes[s % nodes.size()].id);
  }
  return *DhtView::Make(ViewVersion(1, epoch), std::move(nodes), slots, false);
}

struct LocalServersTest : ::testing::Test {
  bool Attached(SlotId slot = SlotId(0)) {
    const ReaderGate::Pass pass = servers.gate().Enter();
    const LocalRoutes* routes = servers.routes();
    const LocalServer* server = routes == nullptr ? nullptr : routes->Of(slot);
    return server != nullptr && server->session.load() != nullptr;
  }
  PoolImage image;
  ShmPeer peer{&image};
  LocalServers servers{LocalServers::Options{
      .ns = PoolImage::kNs, .attach_timeout = 500ms, .host_id = "here", .token = {}}};
};

TEST_F(LocalServersTest, AttachesToTheServersOfThisHostAlone) {
  peer.Start();
  NodeInfo remote = MakeNode(NodeId(5), peer.path());
  remote.host_id = "elsewhere";
  NodeInfo deaf = MakeNode(NodeId(6), "");
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path()), remote, deaf}));
  EXPECT_TRUE(Eventually([&] { return Attached(SlotId(0)); }));
  const ReaderGate::Pass pass = servers.gate().Enter();
  EXPECT_EQ(servers.routes()->Of(SlotId(1)), nullptr);
  EXPECT_EQ(servers.routes()->Of(SlotId(2)), nullptr);
  EXPECT_NE(servers.routes()->Of(SlotId(3)), nullptr);
  EXPECT_EQ(peer.connections, 1);
}

// A client in a container of its own, on the machine of one server and not on that of the other.
TEST_F(LocalServersTest, AttachesWhateverTheHostsAreCalled) {
  peer.Start();
  NodeInfo same = MakeNode(kNode, peer.path());
  same.host_id = "server/boot-1";
  NodeInfo other = MakeNode(NodeId(5), peer.path());
  other.host_id = "engine/boot-2";
  LocalServers container(
      {.ns = PoolImage::kNs, .attach_timeout = 500ms, .host_id = "engine/boot-1", .token = {}});
  container.Follow(MakeView(1, {same, other}));
  const auto session = [&] {
    const ReaderGate::Pass pass = container.gate().Enter();
    return container.routes()->Of(SlotId(0))->session.load();
  };
  EXPECT_TRUE(Eventually([&] { return session() != nullptr; }));
  const ReaderGate::Pass pass = container.gate().Enter();
  EXPECT_EQ(container.routes()->Of(SlotId(1)), nullptr);
}

TEST_F(LocalServersTest, AServerThatIsNotMeantIsNotAttachedTo) {
  peer.boot_id = 2;
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path(), 1)}));
  EXPECT_TRUE(Eventually([&] { return peer.connections == 2; })) << "it is tried again";
  EXPECT_EQ(peer.attached, 0);
  EXPECT_FALSE(Attached());
}

TEST_F(LocalServersTest, FollowsNewerViewsOnly) {
  peer.Start();
  EXPECT_EQ(servers.routes(), nullptr);
  servers.Follow(nullptr);
  servers.Follow(MakeView(2, {MakeNode(kNode, peer.path())}));
  servers.Follow(MakeView(1, {}));
  const ReaderGate::Pass pass = servers.gate().Enter();
  EXPECT_EQ(servers.routes()->view, ViewVersion(1, 2).packed());
}

TEST_F(LocalServersTest, ASessionSurvivesViewsThatKeepItsServer) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  for (uint64_t epoch = 2; epoch < 50; ++epoch) {
    servers.Follow(MakeView(epoch, {MakeNode(kNode, peer.path()), MakeNode(NodeId(9), "")}));
    EXPECT_TRUE(Attached());
  }
  EXPECT_EQ(peer.attached, 1);
}

TEST_F(LocalServersTest, AServerThatLeavesTheViewIsLetGo) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  servers.Follow(MakeView(2, {}));
  EXPECT_FALSE(Attached());
  EXPECT_TRUE(Eventually([&] { return peer.ended == 1; }));
}

TEST_F(LocalServersTest, AnotherBootOfAServerIsAnotherServer) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path(), 1)}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  peer.boot_id = 2;
  servers.Follow(MakeView(2, {MakeNode(kNode, peer.path(), 2)}));
  EXPECT_TRUE(Eventually([&] { return peer.attached == 2 && Attached(); }));
}

TEST_F(LocalServersTest, AReaderKeepsWhatItIsIn) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  const ReaderGate::Pass pass = servers.gate().Enter();
  const LocalRoutes* const routes = servers.routes();
  ShmSession* const session = routes->Of(SlotId(0))->session.load();
  servers.Follow(MakeView(2, {}));
  ASSERT_TRUE(Eventually([&] { return !session->usable(); }));
  // Both are out of sight, and here.
  EXPECT_FALSE(session->usable());
  EXPECT_EQ(session->control().size_bytes(), shm::kControlBytes);
  EXPECT_EQ(routes->servers.size(), 1U);
}

TEST_F(LocalServersTest, ASessionThatEndsIsTriedAgainAfterASecond) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  const TimePoint ended = Clock::System().Now();
  peer.HangUp();
  ASSERT_TRUE(Eventually([&] { return !Attached(); }));
  EXPECT_TRUE(Eventually([&] { return Attached(); }));
  EXPECT_GE(Clock::System().Now() - ended, LocalServers::kAttachAgain);
}

TEST_F(LocalServersTest, AServerThatRefusesIsLeftAloneForASecond) {
  peer.attach_status = wire::WireStatus::kUnimplemented;
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return peer.ended == 1; }));
  const TimePoint refused = Clock::System().Now();
  for (uint64_t epoch = 2; epoch < 20; ++epoch) {
    servers.Follow(MakeView(epoch, {MakeNode(kNode, peer.path())}));
  }
  ASSERT_TRUE(Eventually([&] { return peer.connections == 2; }));
  EXPECT_GE(Clock::System().Now() - refused, LocalServers::kAttachAgain - 100ms);
}

TEST_F(LocalServersTest, StagingMemoryIsOfferedAsFarAsItIsNeeded) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  const auto memory = *StagingMemory::Create(64 * kMiB);
  servers.Offer(memory);
  ASSERT_TRUE(Eventually([&] { return servers.StagedFor(kNode).has_value(); }));
  EXPECT_EQ(servers.StagedFor(kNode)->bytes, StagingMemory::kFirstBytes);
  EXPECT_EQ(peer.registered_bytes, StagingMemory::kFirstBytes);
  StagingBuffer buffer = *memory->Allocate(30 * kMiB);
  servers.OnStagingChanged();
  EXPECT_TRUE(Eventually([&] { return servers.StagedFor(kNode)->bytes == memory->made_bytes(); }));
  EXPECT_EQ(peer.registered_bytes, 30 * kMiB);
}

TEST_F(LocalServersTest, StagingMemoryIsOfferedToEachSession) {
  peer.Start();
  servers.Follow(MakeView(1, {MakeNode(kNode, peer.path())}));
  ASSERT_TRUE(Eventually([&] { return Attached(); }));
  EXPECT_FALSE(servers.StagedFor(kNode));
  servers.Offer(*StagingMemory::Create(64 * kKiB));
  EXPECT_TRUE(Eventually([&] { return servers.StagedFor(kNode).has_value(); }));
  EXPECT_EQ(servers.StagedFor(kNode)->session, 11U);
  EXPECT_FALSE(servers.StagedFor(NodeId(99)));
  servers.StopStaging(kNode);
  EXPECT_FALSE(servers.StagedFor(kNode));
  peer.HangUp();  // the next session is offered it again
  EXPECT_TRUE(Eventually([&] { return servers.StagedFor(kNode).has_value(); }));
}

}  // namespace
}  // namespace ems::internal
