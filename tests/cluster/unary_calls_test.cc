// What must hold: a call ends by its deadline, by its answer or by Close, whichever is first; after
// Close none begins.
#include "cluster/unary_calls.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <latch>

#include "cluster/control_channel.h"
#include "common/thread_pool.h"
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

}  // namespace
}  // namespace ems
