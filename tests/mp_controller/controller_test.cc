// The controller in this process, over real gRPC.
#include "mp_controller/controller.h"

#include <gtest/gtest.h>

#include "proto/config.pb.h"
#include "proto/controller.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

class ControllerTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void Restart() {
    const int port = controller_ == nullptr ? 0 : controller_->port();
    controller_.reset();
    controller_ = std::make_unique<Controller>(FastOptions(dir_.path(), port));
    const Status status = controller_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  std::unique_ptr<Beater> Server(const std::string& name, uint64_t boot = 1) {
    return std::make_unique<Beater>(controller_->address(), name, boot);
  }

  TempDir dir_;
  std::unique_ptr<Controller> controller_;
};

TEST_F(ControllerTest, WatchFollowsJoinsDeathAndLeave) {
  ViewCache cache;
  ControllerClient client(controller_->address(), "test");
  client.StartWatch(&cache, {});
  auto a = Server("a"), b = Server("b"), c = Server("c");
  const auto three = WaitFor(&cache, HasNodes(3));
  ASSERT_NE(three, nullptr);
  for (const auto& node : three->nodes()) {
    EXPECT_NEAR(three->slots().CountOf(node.id), kSlotCount / 3.0, 1);
  }
  b->Stop();
  const auto two = WaitFor(&cache, HasNodes(2));
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->slots().CountOf(b->id()), 0u);
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(static_cast<uint16_t>(i));
    if (three->OwnerId(slot) == b->id()) continue;
    EXPECT_EQ(two->OwnerId(slot), three->OwnerId(slot)) << "slot " << i;
  }
  ASSERT_TRUE(c->Leave().ok());
  EXPECT_NE(WaitFor(&cache, HasNodes(1)), nullptr);
}

TEST_F(ControllerTest, MostServersGoneFreezesUntilTheLossIsAccepted) {
  ViewCache cache;
  ControllerClient client(controller_->address(), "test");
  client.StartWatch(&cache, {});
  auto a = Server("a"), b = Server("b"), c = Server("c");
  const auto three = WaitFor(&cache, HasNodes(3));
  ASSERT_NE(three, nullptr);
  a->Stop();
  b->Stop();
  const auto frozen = WaitFor(&cache, [](const DhtView& view) { return view.frozen(); });
  ASSERT_NE(frozen, nullptr);
  EXPECT_EQ(frozen->slots(), three->slots());
  ASSERT_TRUE(client.AcceptLoss(Soon()).ok());
  EXPECT_NE(WaitFor(&cache, HasNodes(1)), nullptr);
}

TEST_F(ControllerTest, RestartKeepsOwnersNamespacesAndNodesAndGrowsTheTerm) {
  ViewCache cache;
  ControllerClient client(controller_->address(), "test");
  client.StartWatch(&cache, {});
  auto a = Server("a"), b = Server("b");
  const auto before = WaitFor(&cache, HasNodes(2));
  ASSERT_NE(before, nullptr);
  NamespaceInfo wanted;
  wanted.name = "kept";
  const auto made = client.CreateNamespace(wanted, Soon());
  ASSERT_TRUE(made.ok()) << made.status();
  Restart();
  const auto after = WaitFor(&cache, [&](const DhtView& view) {
    return view.version().term() > before->version().term();
  });
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->slots(), before->slots());
  const auto kept = client.GetNamespace("kept", Soon());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->ref, made->ref);
  v1::ListNodesReply list;
  ASSERT_TRUE(client.ListNodes(&list, Soon()).ok());
  EXPECT_EQ(list.nodes_size(), 2);
}

TEST_F(ControllerTest, SecondControllerOnTheSameFolderFailsClearly) {
  Controller second(FastOptions(dir_.path()));
  EXPECT_EQ(second.Start().code(), StatusCode::kFailedPrecondition);
}

TEST_F(ControllerTest, TakenPortFailsClearly) {
  TempDir dir;
  Controller second(FastOptions(dir.path(), controller_->port()));
  const Status status = second.Start();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(status).find("cannot listen"), std::string_view::npos);
}

TEST(ControllerOptionsTest, LeaseMustOutlastTwoHeartbeats) {
  config::ControllerConfig config;
  config.set_heartbeat_ms(1000);
  config.set_lease_ms(1999);
  EXPECT_EQ(MakeOptions(config).status().code(), StatusCode::kInvalidArgument);
  config.set_lease_ms(2000);
  EXPECT_TRUE(MakeOptions(config).ok());
  config.set_default_namespace("a/b");
  EXPECT_FALSE(MakeOptions(config).ok());
}

}  // namespace
}  // namespace ems::controller
