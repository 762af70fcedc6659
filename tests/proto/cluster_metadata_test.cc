// What must hold: a call for another cluster is refused by name whatever it asks for, and changes
// nothing; one for this cluster, or for nobody in particular, is answered with whose it is.
#include "proto/cluster_metadata.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cluster/control_channel.h"
#include "proto/controller.grpc.pb.h"
#include "proto/model.grpc.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

class ClusterMetadataTest : public ::testing::Test {
 protected:
  using Call = std::function<grpc::Status(grpc::ClientContext*)>;

  void SetUp() override {
    ASSERT_EQ(controller_.Start(), OkStatus());
    channel_ = MakeControlChannel(controller_.address(), 4 << 20);
    cluster_ = v1::Controller::NewStub(channel_);
    models_ = v1::Models::NewStub(channel_);
    ViewCache cache;
    ControllerClient client(controller_.address(), "test");
    ASSERT_EQ(client.Refresh(&cache, Soon()), OkStatus());
    own_ = cache.cluster();
    ASSERT_NE(own_, kNoCluster);
  }
  // One of each way in which calls are answered.
  std::vector<Call> Calls() {
    return {
        [this](grpc::ClientContext* context) {
          v1::CreateNamespaceRequest request;
          request.set_name("theirs");
          v1::Namespace reply;
          return cluster_->CreateNamespace(context, request, &reply);
        },
        [this](grpc::ClientContext* context) {
          v1::ClusterUpdate reply;
          return cluster_->GetCluster(context, {}, &reply);
        },
        [this](grpc::ClientContext* context) {
          v1::ReportPullReply reply;
          return models_->ReportPull(context, {}, &reply);
        },
        [this](grpc::ClientContext* context) {
          v1::ListModelsReply reply;
          return models_->ListModels(context, {}, &reply);
        },
    };
  }
  // `answered_by`: what the answer says.
  static grpc::Status Ask(const Call& call, const std::string& cluster, std::string* answered_by) {
    grpc::ClientContext context;
    SetDeadline(Soon(), &context);
    if (!cluster.empty()) context.AddMetadata(kClusterMetadata, cluster);
    const grpc::Status status = call(&context);
    const auto said = context.GetServerInitialMetadata().find(kClusterMetadata);
    answered_by->clear();
    if (said != context.GetServerInitialMetadata().end())
      answered_by->assign(said->second.data(), said->second.size());
    return status;
  }

  TempDir dir_;
  Controller controller_{FastOptions(dir_.path())};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Controller::Stub> cluster_;
  std::unique_ptr<v1::Models::Stub> models_;
  ClusterId own_;
};

TEST_F(ClusterMetadataTest, ACallForAnotherClusterIsRefusedByNameAndChangesNothing) {
  const std::string other = ClusterText(ClusterId(own_.value() ^ 2));
  for (const Call& call : Calls()) {
    std::string answered_by;
    const grpc::Status refused = Ask(call, other, &answered_by);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(refused.error_message(),
              "this call is for cluster " + other + ", and this is the controller of cluster " +
                  ClusterText(own_) + ": correct the controller's address, or the cluster");
  }
  ControllerClient client(controller_.address(), "test");
  EXPECT_EQ(client.GetNamespace("theirs", Soon()).status().code(), StatusCode::kNotFound);
}

TEST_F(ClusterMetadataTest, OthersAreAnsweredWithWhoseTheAnswerIs) {
  for (const std::string& cluster : {ClusterText(own_), std::string()}) {
    for (const Call& call : Calls()) {
      std::string answered_by;
      const grpc::Status answer = Ask(call, cluster, &answered_by);
      EXPECT_NE(answer.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
      EXPECT_EQ(answered_by, ClusterText(own_)) << answer.error_message();
    }
  }
}

TEST_F(ClusterMetadataTest, WhatIsNoClusterIsNotTakenForAny) {
  for (const Call& call : Calls()) {
    std::string answered_by;
    EXPECT_EQ(Ask(call, "mine", &answered_by).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST(SameClusterTest, AnotherClusterIsNamedBesideOurs) {
  EXPECT_TRUE(CheckSameCluster("x is of", ClusterId(1), ClusterId(1), "").ok());
  EXPECT_TRUE(CheckSameCluster("x is of", kNoCluster, ClusterId(1), "").ok()) << "older software";
  const Status refused = CheckSameCluster("x is of", ClusterId(2), ClusterId(1), "go away");
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(refused),
            "x is of cluster 0000000000000002, and this is the controller of cluster "
            "0000000000000001: go away");
}

}  // namespace
}  // namespace ems::controller
