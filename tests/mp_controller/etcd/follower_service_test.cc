#include "mp_controller/etcd/follower_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "cluster/controller_client.h"
#include "cluster/models_client.h"
#include "cluster/while_starting.h"
#include "proto/controller.grpc.pb.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/controller_harness.h"

namespace ems::controller {
namespace {

using ::testing::HasSubstr;

TEST(FollowerServiceTest, EveryCallOfEveryServiceIsRefusedAndTheLeaderNamed) {
  const auto follower = FollowerService::Start("127.0.0.1:0", [] { return "10.0.0.9:7400"; });
  ASSERT_TRUE(follower.ok()) << follower.status();
  const std::string address = "127.0.0.1:" + std::to_string((*follower)->port());
  ControllerClient client(address, "test");
  v1::ListNodesReply nodes;
  const Status listed = client.ListNodes(&nodes, Soon());
  EXPECT_EQ(listed.code(), StatusCode::kUnavailable);
  EXPECT_THAT(Message(listed), HasSubstr("not the leader, try 10.0.0.9:7400"));
  EXPECT_TRUE(IsStarting(listed)) << "nothing was done, so the same call may go again";
  ModelsClient models(address);
  v1::ListModelsReply list;
  EXPECT_TRUE(IsStarting(models.List(0, Duration(0), &list, Soon())));
  ViewCache cache;
  EXPECT_TRUE(IsStarting(client.Refresh(&cache, Soon())));

  // The watch of an older client.
  const auto stub =
      v1::Controller::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Watch(&context, v1::WatchRequest());
  v1::ClusterUpdate update;
  EXPECT_FALSE(stream->Read(&update));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(FollowerServiceTest, WithoutALeaderItSaysSo) {
  const auto follower = FollowerService::Start("127.0.0.1:0", [] { return ""; });
  ASSERT_TRUE(follower.ok()) << follower.status();
  ControllerClient client("127.0.0.1:" + std::to_string((*follower)->port()), "test");
  v1::ListNodesReply nodes;
  const Status listed = client.ListNodes(&nodes, Soon());
  EXPECT_TRUE(IsStarting(listed)) << listed;
  EXPECT_THAT(Message(listed), HasSubstr("no other one does yet"));
}

TEST(FollowerServiceTest, AnAddressThatIsTakenIsAnError) {
  const auto follower = FollowerService::Start("127.0.0.1:0", [] { return ""; });
  ASSERT_TRUE(follower.ok()) << follower.status();
  EXPECT_EQ(
      FollowerService::Start("127.0.0.1:" + std::to_string((*follower)->port()), [] { return ""; })
          .status()
          .code(),
      StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::controller
