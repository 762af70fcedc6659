// What must hold: a call ends by its deadline, by its answer or by Close, whichever is first; after
// Close none begins. Calls name the cluster of their process, and no other one's answer is taken.
#include "cluster/unary_calls.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <latch>
#include <string>

#include "cluster/control_channel.h"
#include "cluster/view_cache.h"
#include "common/thread_pool.h"
#include "proto/cluster_metadata.h"
#include "proto/controller.grpc.pb.h"

namespace ems {
namespace {

using std::chrono::seconds;

std::shared_ptr<grpc::Channel> NobodyThere() { return MakeControlChannel("127.0.0.1:1", 1 << 20); }

TEST(UnaryCallsTest, GivesTheCallADeadlineAndItsStatusBack) {
  UnaryCalls calls(NobodyThere());
  const Status status = calls.Call(Deadline::After(seconds(30)), [](grpc::ClientContext* context) {
    const auto left = context->deadline() - std::chrono::system_clock::now();
    EXPECT_GT(left, seconds(20));
    EXPECT_LT(left, seconds(31));
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such thing");
  });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "no such thing");
}

TEST(UnaryCallsTest, BeginsNothingWhenTheTimeIsOver) {
  UnaryCalls calls(NobodyThere());
  bool called = false;
  const Status status = calls.Call(Deadline(TimePoint()), [&](grpc::ClientContext*) {
    called = true;
    return grpc::Status::OK;
  });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(called);
}

TEST(UnaryCallsTest, CloseEndsCallsUnderWayAndAllLaterOnes) {
  const std::shared_ptr<grpc::Channel> channel = NobodyThere();
  const auto stub = v1::Controller::NewStub(channel);
  UnaryCalls calls(channel);
  std::latch under_way(1);
  const auto wait_for_nobody = [&](grpc::ClientContext* context) {
    context->set_wait_for_ready(true);
    v1::ClusterUpdate update;
    return stub->GetCluster(context, {}, &update);
  };
  Status ended;
  Thread caller("caller", [&] {
    ended = calls.Call(Deadline::After(seconds(60)), [&](grpc::ClientContext* context) {
      under_way.count_down();
      return wait_for_nobody(context);
    });
  });
  under_way.wait();
  const TimePoint begin = Clock::System().Now();
  calls.Close();
  caller.Join();
  EXPECT_LT(Clock::System().Now() - begin, seconds(30));
  EXPECT_EQ(ended.code(), StatusCode::kCancelled);
  EXPECT_EQ(calls.Call(Deadline::After(seconds(60)), wait_for_nobody).code(),
            StatusCode::kCancelled);
}

// A controller that says whose it is, as each does, and carries out what others refuse.
class NamedController final : public v1::Controller::Service {
 public:
  static constexpr ClusterId kCluster{0xabc};
  NamedController() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest*,
                          v1::ClusterUpdate*) override {
    const auto named = context->client_metadata().find(kClusterMetadata);
    const bool said = named != context->client_metadata().end();
    asked_for = said ? std::string(named->second.data(), named->second.size()) : "nobody";
    context->AddInitialMetadata(kClusterMetadata, ClusterText(kCluster));
    return grpc::Status::OK;
  }
  Status Ask(ViewCache* joined) {
    const auto channel = MakeControlChannel(fmt::format("127.0.0.1:{}", port_), 1 << 20);
    const auto stub = v1::Controller::NewStub(channel);
    UnaryCalls calls(channel, joined);
    return calls.Call(Deadline::After(seconds(30)), [&](grpc::ClientContext* context) {
      v1::ClusterUpdate update;
      return stub->GetCluster(context, {}, &update);
    });
  }
  std::string asked_for;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(UnaryCallsTest, TheFirstClusterThatAnswersIsJoinedAndNamedFromThenOn) {
  NamedController controller;
  ViewCache joined;
  ASSERT_EQ(controller.Ask(&joined), OkStatus());
  EXPECT_EQ(controller.asked_for, "nobody");
  EXPECT_EQ(joined.cluster(), NamedController::kCluster);
  ASSERT_EQ(controller.Ask(&joined), OkStatus());
  EXPECT_EQ(controller.asked_for, "0000000000000abc");
  EXPECT_EQ(controller.Ask(nullptr), OkStatus());
  EXPECT_EQ(controller.asked_for, "nobody");
}

TEST(UnaryCallsTest, WhatTheControllerOfAnotherClusterAnswersIsAnError) {
  NamedController controller;
  ViewCache joined;
  ASSERT_EQ(joined.Join(ClusterId(0xdef)), OkStatus());
  const Status refused = controller.Ask(&joined);
  EXPECT_EQ(controller.asked_for, "0000000000000def");
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(refused).find("cluster 0000000000000abc answers"), std::string_view::npos);
}

}  // namespace
}  // namespace ems
