// The client against a real controller that comes and goes.
#include "cluster/controller_client.h"

#include <gtest/gtest.h>

#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

TEST(ControllerClientTest, NobodyThereFailsFastAndNamesTheAddress) {
  ControllerClient client("127.0.0.1:1", "test");
  ViewCache cache;
  const Status status = client.Refresh(&cache, Soon());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(status).find("127.0.0.1:1"), std::string_view::npos);
  EXPECT_EQ(client.Refresh(&cache, Deadline::After(Duration::zero())).code(),
            StatusCode::kDeadlineExceeded);
}

TEST(ControllerClientTest, AnAddressThatIsNoneIsSaidAndNothingIsTried) {
  for (const char* address : {"localhost", "localhost:", "7400", "", "localhost:0", "http://a:1"}) {
    ControllerClient client(address, "test");
    ViewCache cache;
    client.StartWatch(&cache, {});
    const Status status = client.Refresh(&cache, Soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << address;
    EXPECT_NE(Message(status).find(fmt::format("controller address \"{}\"", address)),
              std::string_view::npos)
        << status;
    EXPECT_NE(Message(status).find("7400"), std::string_view::npos) << status;
  }
}

TEST(ControllerClientTest, RefreshFillsTheCacheAndNamespaceCallsWork) {
  TempDir dir;
  Controller controller(FastOptions(dir.path()));
  ASSERT_TRUE(controller.Start().ok());
  ControllerClient client(controller.address(), "test");
  ViewCache cache;
  ASSERT_TRUE(client.Refresh(&cache, Soon()).ok());
  ASSERT_NE(cache.view(), nullptr);
  EXPECT_NE(cache.namespaces()->Find("default"), nullptr);

  NamespaceInfo wanted;
  wanted.name = "kv";
  wanted.dram_quota_bytes = 100;
  const auto made = client.CreateNamespace(wanted, Soon());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(client.CreateNamespace(wanted, Soon()).status().code(), StatusCode::kAlreadyExists);
  wanted.dram_quota_bytes = 200;
  EXPECT_EQ(client.UpdateNamespace(wanted, Soon())->ref, made->ref);
  EXPECT_EQ(client.GetNamespace("kv", Soon())->dram_quota_bytes, 200u);
  EXPECT_EQ(client.ListNamespaces(Soon())->size(), 2u);
  ASSERT_TRUE(client.DeleteNamespace("kv", Soon()).ok());
  EXPECT_EQ(client.GetNamespace("kv", Soon()).status().code(), StatusCode::kNotFound);
  EXPECT_GT(client.CreateNamespace(wanted, Soon())->ref.id, made->ref.id);
  EXPECT_EQ(client.RemoveNode("nobody", Soon()).code(), StatusCode::kNotFound);
  EXPECT_EQ(client.AcceptLoss(Soon()).code(), StatusCode::kFailedPrecondition);
}

TEST(ControllerClientTest, WatchComesBackWithTheController) {
  TempDir dir;
  auto controller = std::make_unique<Controller>(FastOptions(dir.path()));
  ASSERT_TRUE(controller->Start().ok());
  const int port = controller->port();
  ViewCache cache;
  std::atomic<int> updates{0};
  ControllerClient client(controller->address(), "test");
  client.StartWatch(&cache, [&] { ++updates; });
  const auto first = WaitFor(&cache, [](const DhtView&) { return true; });
  ASSERT_NE(first, nullptr);
  controller.reset();
  controller = std::make_unique<Controller>(FastOptions(dir.path(), port));
  const Status status = controller->Start();
  ASSERT_TRUE(status.ok()) << status;
  const auto second = WaitFor(&cache, [&](const DhtView& view) {
    return view.version().term() == first->version().term() + 1;
  });
  ASSERT_NE(second, nullptr);
  EXPECT_GE(updates.load(), 1);
}

// The address leads to another cluster's controller now: nothing of it is taken.
TEST(ControllerClientTest, ViewsAndNamespacesOfAnotherClusterAreRefusedByName) {
  TempDir dir, other_dir;
  auto controller = std::make_unique<Controller>(FastOptions(dir.path()));
  ASSERT_TRUE(controller->Start().ok());
  const int port = controller->port();
  ViewCache cache;
  ControllerClient client(controller->address(), "test");
  ASSERT_TRUE(client.Refresh(&cache, Soon()).ok());
  const ClusterId own = cache.cluster();
  const auto view = cache.view();
  const auto namespaces = cache.namespaces();
  EXPECT_NE(own, kNoCluster);
  controller.reset();
  for (int starts = 0; starts < 3; ++starts) {  // its term is higher then
    controller = std::make_unique<Controller>(FastOptions(other_dir.path(), port));
    ASSERT_TRUE(controller->Start().ok());
    for (int i = 0; starts == 0 && i < 3; ++i) {  // it makes none in the seconds after a restart
      const auto made = client.CreateNamespace({.ref = {}, .name = fmt::format("n{}", i)}, Soon());
      ASSERT_TRUE(made.ok()) << made.status();
    }
    const Status refused = client.Refresh(&cache, Soon());
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(Message(refused).find(ClusterText(own)), std::string_view::npos) << refused;
    controller.reset();
  }
  EXPECT_EQ(cache.view(), view);
  EXPECT_EQ(cache.namespaces(), namespaces);
  EXPECT_EQ(cache.cluster(), own);
}

}  // namespace
}  // namespace ems::controller
