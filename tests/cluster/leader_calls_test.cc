#include "cluster/leader_calls.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "cluster/while_starting.h"
#include "proto/cluster_metadata.h"
#include "proto/controller.grpc.pb.h"
#include "proto/status_codec.h"

namespace ems {
namespace {

Deadline CallTime() { return Deadline::After(std::chrono::seconds(10)); }

// A controller that leads, or names another one.
struct NamingController final : public v1::Controller::CallbackService {
  NamingController() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
  }
  ~NamingController() override { server->Shutdown(); }
  grpc::ServerUnaryReactor* RemoveNode(grpc::CallbackServerContext* context,
                                       const v1::RemoveNodeRequest*,
                                       v1::RemoveNodeReply*) override {
    ++asked;
    auto* reactor = context->DefaultReactor();
    Answer(
        answer, [this] { return other; }, context, reactor);
    return reactor;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }

  std::optional<std::string> other;  // nothing: it leads
  Status answer;
  std::atomic<int> asked{0};
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

class LeaderCallsTest : public ::testing::Test {
 protected:
  Status Call(bool reads = false) {
    const auto call = [this](size_t i, grpc::ClientContext* context) {
      v1::RemoveNodeReply reply;
      return v1::Controller::NewStub(calls_.channels().channel(i))
          ->RemoveNode(context, v1::RemoveNodeRequest(), &reply);
    };
    return calls_.Call(CallTime(), call, reads);
  }
  NamingController a_, b_, c_;
  LeaderCalls calls_{a_.address() + "," + b_.address() + "," + c_.address(), 1 << 20, nullptr};
};

TEST_F(LeaderCallsTest, TheOneThatIsNamedIsAskedAndRemembered) {
  a_.other = c_.address();
  EXPECT_EQ(Call(), OkStatus());
  EXPECT_EQ(Call(), OkStatus());
  EXPECT_EQ(a_.asked, 1);
  EXPECT_EQ(b_.asked, 0);
  EXPECT_EQ(c_.asked, 2);
}

TEST_F(LeaderCallsTest, WhoKnowsNobodyIsPassedOver) {
  a_.other = "";
  b_.other = "elsewhere:1";
  EXPECT_EQ(Call(), OkStatus());
  EXPECT_EQ(c_.asked, 1);
}

TEST_F(LeaderCallsTest, WithoutALeaderEachIsAskedOnce) {
  a_.other = b_.other = c_.other = "";
  const Status status = Call();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(a_.asked + b_.asked + c_.asked, 3);
}

TEST_F(LeaderCallsTest, WhatMayHaveBeenDoneIsNotAskedOfAnother) {
  a_.answer = Error(StatusCode::kUnavailable, "the disk refuses");
  EXPECT_EQ(Call().code(), StatusCode::kUnavailable);
  EXPECT_EQ(b_.asked, 0);
  EXPECT_EQ(Call(), OkStatus()) << "the next call asks the next one";
  EXPECT_EQ(b_.asked, 1);
}

TEST_F(LeaderCallsTest, OneThatEndsMeanwhileMayHaveDoneIt) {
  a_.answer = Error(StatusCode::kCancelled, "CANCELLED");
  const Status status = Call();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(status).find("not known whether"), std::string_view::npos) << status;
  EXPECT_FALSE(IsStarting(status)) << "it must not go again by itself";
  EXPECT_EQ(b_.asked, 0);
  calls_.Close();
  EXPECT_EQ(Call().code(), StatusCode::kCancelled) << "this side has ended";
}

TEST_F(LeaderCallsTest, AReadIsAskedOfAnother) {
  a_.answer = Error(StatusCode::kUnavailable, "stopping");
  b_.answer = Error(StatusCode::kCancelled, "stopping");
  EXPECT_EQ(Call(/*reads=*/true), OkStatus());
  EXPECT_EQ(c_.asked, 1);
}

TEST_F(LeaderCallsTest, AnAnswerOfTheLeaderStands) {
  a_.answer = Error(StatusCode::kNotFound, "no such node");
  EXPECT_EQ(Call().code(), StatusCode::kNotFound);
  EXPECT_EQ(b_.asked, 0);
  EXPECT_EQ(Call().code(), StatusCode::kNotFound);
}

TEST(LeaderCallsAloneTest, WithNobodyThereNothingWasDone) {
  LeaderCalls calls("127.0.0.1:1,127.0.0.1:2", 1 << 20, nullptr);
  const Status status = calls.Call(CallTime(), [](size_t, grpc::ClientContext*) {
    ADD_FAILURE() << "nobody is there";
    return grpc::Status::OK;
  });
  EXPECT_TRUE(IsStarting(status)) << status;
}

}  // namespace
}  // namespace ems
