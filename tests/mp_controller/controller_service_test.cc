// What must hold: many watchers at once, slow ones and those beyond the limit, requests that are
// too large or make no sense: each is answered, and service goes on for the others.
#include "mp_controller/controller_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/controller.grpc.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"
#include "tests/support/eventually.h"

namespace ems::controller {
namespace {

class ControllerServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = controller_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  std::unique_ptr<v1::Controller::Stub> Stub() {
    return v1::Controller::NewStub(
        grpc::CreateChannel(controller_.address(), grpc::InsecureChannelCredentials()));
  }

  TempDir dir_;
  Controller controller_{FastOptions(dir_.path())};
};

// F17: many watchers at once, each gets the view and then a change.
TEST_F(ControllerServiceTest, TwoHundredWatchersAtOnce) {
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
  const Beater a(controller_.address(), "a", 1);
  for (auto& watcher : watchers) {
    ASSERT_TRUE(watcher->reader->Read(&update));
    EXPECT_TRUE(update.has_view() || update.has_delta());
  }
  for (auto& watcher : watchers) watcher->context.TryCancel();
}

// One that never reads holds up nobody, and gets the newest state when it reads at last.
TEST_F(ControllerServiceTest, SlowWatcherSkipsAndHoldsUpNobody) {
  grpc::ChannelArguments args;  // a window that does not grow, so that little fits on the way
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Controller::NewStub(
      grpc::CreateCustomChannel(controller_.address(), grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto slow = stub->Watch(&context, v1::WatchRequest());
  ViewCache cache;
  ControllerClient client(controller_.address(), "test");
  client.StartWatch(&cache, {});
  NamespaceInfo wanted;
  for (int i = 0; i < 300; ++i) {
    wanted.name = "namespace-with-a-name-that-takes-some-room-on-the-wire-" + std::to_string(i);
    ASSERT_TRUE(client.CreateNamespace(wanted, Soon()).ok());
  }
  EXPECT_TRUE(testing::Eventually([&] { return cache.namespaces()->Find(wanted.name); }));
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

TEST_F(ControllerServiceTest, WatchersBeyondTheLimitAreRefused) {
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

TEST_F(ControllerServiceTest, OversizeAndMalformedRequestsAreRefusedAndServiceGoesOn) {
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

}  // namespace
}  // namespace ems::controller
