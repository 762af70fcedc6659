// The controller in this process, over real gRPC.
#include "mp_controller/controller.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/config.pb.h"
#include "proto/controller.grpc.pb.h"
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
  std::unique_ptr<v1::Controller::Stub> Stub() {
    return v1::Controller::NewStub(
        grpc::CreateChannel(controller_->address(), grpc::InsecureChannelCredentials()));
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

// F17: many watchers at once, each gets the view and then a change.
TEST_F(ControllerTest, TwoHundredWatchersAtOnce) {
  constexpr size_t kWatchers = 200;
  const auto stub = Stub();
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::ClusterUpdate>> reader;
  };
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (size_t i = 0; i < kWatchers; ++i) {
    auto watcher = std::make_unique<Watcher>();
    watcher->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    watcher->reader = stub->Watch(&watcher->context, v1::WatchRequest());
    watchers.push_back(std::move(watcher));
  }
  v1::ClusterUpdate update;
  for (auto& watcher : watchers) {
    ASSERT_TRUE(watcher->reader->Read(&update));
    EXPECT_TRUE(update.has_view());
  }
  auto a = Server("a");
  for (auto& watcher : watchers) {
    ASSERT_TRUE(watcher->reader->Read(&update));
    EXPECT_TRUE(update.has_view() || update.has_delta());
  }
  for (auto& watcher : watchers) watcher->context.TryCancel();
}

// One that never reads holds up nobody, and gets the newest state when it reads at last.
TEST_F(ControllerTest, SlowWatcherSkipsAndHoldsUpNobody) {
  grpc::ChannelArguments args;  // a window that does not grow, so that little fits on the way
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Controller::NewStub(
      grpc::CreateCustomChannel(controller_->address(), grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto slow = stub->Watch(&context, v1::WatchRequest());
  ViewCache cache;
  ControllerClient client(controller_->address(), "test");
  client.StartWatch(&cache, {});
  NamespaceInfo wanted;
  for (int i = 0; i < 300; ++i) {
    wanted.name = "namespace-with-a-name-that-takes-some-room-on-the-wire-" + std::to_string(i);
    ASSERT_TRUE(client.CreateNamespace(wanted, Soon()).ok());
  }
  EXPECT_TRUE(cache.WaitForNamespace(wanted.name, Soon()).has_value());
  v1::ClusterUpdate update;
  uint64_t version = 0;
  int messages = 0;
  while (version < 301 && slow->Read(&update)) {
    ++messages;
    if (update.has_namespaces()) version = update.namespaces().version();
  }
  EXPECT_EQ(version, 301u);
  EXPECT_LT(messages, 250) << "states that nobody took are skipped";
  context.TryCancel();
}

TEST_F(ControllerTest, WatchersBeyondTheLimitAreRefused) {
  TempDir dir;
  ControllerOptions options = FastOptions(dir.path());
  options.watchers_max = 1;
  Controller small(options);
  ASSERT_TRUE(small.Start().ok());
  const auto stub = v1::Controller::NewStub(
      grpc::CreateChannel(small.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext first_context, second_context;
  const auto first = stub->Watch(&first_context, v1::WatchRequest());
  v1::ClusterUpdate update;
  ASSERT_TRUE(first->Read(&update));
  const auto second = stub->Watch(&second_context, v1::WatchRequest());
  EXPECT_FALSE(second->Read(&update));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first_context.TryCancel();
}

TEST_F(ControllerTest, OversizeAndMalformedRequestsAreRefusedAndServiceGoesOn) {
  const auto stub = Stub();
  grpc::ClientContext large_context;
  v1::WatchRequest unused;
  v1::CreateNamespaceRequest large;
  large.set_name(std::string(25 << 20, 'a'));
  v1::Namespace reply;
  EXPECT_EQ(stub->CreateNamespace(&large_context, large, &reply).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext bad_context;
  v1::RegisterReply registered;
  EXPECT_EQ(stub->Register(&bad_context, v1::RegisterRequest(), &registered).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext good_context;
  large.set_name("good");
  EXPECT_TRUE(stub->CreateNamespace(&good_context, large, &reply).ok());
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
