// What must hold: callers are checked and bounded; a decode worker that is gone leaves nothing.
#include "pdc/rpc/prefill_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "fabric/emulated/ring_receiver.h"
#include "fabric/net/fd_message.h"
#include "pdc/rpc/ring_greeting.h"
#include "proto/pdc.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/scripted_prefill.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::ScriptedInstance;
using testing::ScriptedPrefillHost;

class PrefillServiceTest : public ::testing::Test {
 protected:
  // One call, in the caller's hands.
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::RunEvent>> reader;
    v1::RunEvent event;
    grpc::StatusCode Finish() {
      while (reader->Read(&event)) {
      }
      return reader->Finish().error_code();
    }
  };

  void Serve(Duration lease = seconds(30), size_t streams_max = 1024, size_t sessions_max = 2) {
    auto started = ServePrefill({.instance = ScriptedInstance("service"),
                                 .streams_max = streams_max,
                                 .sessions_max = sessions_max,
                                 .session_lease = lease},
                                &host_);
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
    stub_ = v1::Prefill::NewStub(
        grpc::CreateChannel(service_->address(), grpc::InsecureChannelCredentials()));
  }
  std::unique_ptr<fabric::RingReceiver> Offer(uint64_t session) const {
    auto socket = fabric::Connect(
        {.host = {}, .port = 0, .unix_path = service_->instance().ring_socket_path}, seconds(5));
    EXPECT_TRUE(socket.ok()) << socket.status();
    const RingGreeting greeting{.incarnation = service_->instance().incarnation,
                                .session = session};
    EXPECT_EQ(fabric::SendMessageTo(socket->get(), std::as_bytes(std::span(&greeting, 1)), {}),
              OkStatus());
    return *fabric::RingReceiver::Offer(*std::move(socket),
                                        {.entries = 2, .entry_bytes = 4 * kKiB});
  }
  bool IsLinked(uint64_t session) const {
    v1::PulseRequest request;
    request.set_session(session);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    v1::PrefillPulseReply reply;
    EXPECT_TRUE(stub_->Pulse(&context, request, &reply).ok());
    EXPECT_EQ(reply.incarnation(), service_->instance().incarnation);
    return reply.linked();
  }
  static v1::RunRequest Request(uint64_t id, uint64_t session = 1) {
    v1::RunRequest request;
    request.set_session(session);
    request.set_id(id);
    request.add_prompt(5);
    request.mutable_sampler()->set_top_p(1);
    request.set_time_us(10'000'000);
    return request;
  }
  std::unique_ptr<Call> Run(const v1::RunRequest& request, Duration timeout = seconds(20)) const {
    auto call = std::make_unique<Call>();
    if (timeout > Duration::zero())
      call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->reader = stub_->Run(&call->context, request);
    return call;
  }

  ScriptedPrefillHost host_;
  std::unique_ptr<InstanceService> service_;
  std::unique_ptr<v1::Prefill::Stub> stub_;
};

TEST_F(PrefillServiceTest, CallsThatAreNotSoundReachNobody) {
  Serve();
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  EXPECT_EQ(Run(Request(1, 2))->Finish(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Run(Request(1), Duration::zero())->Finish(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Run(Request(1), std::chrono::hours(3))->Finish(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::RunRequest unknown = Request(1);
  unknown.add_prompt(264);
  EXPECT_EQ(Run(unknown)->Finish(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(host_.Has(1));
}

TEST_F(PrefillServiceTest, CallsBeyondTheBoundAreRefusedUntilATaskIsOver) {
  Serve(seconds(30), 1);
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  const auto first = Run(Request(1));
  ASSERT_TRUE(Eventually([&] { return host_.Has(1); }));
  EXPECT_EQ(Run(Request(2))->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  host_.Done(1, {.first = 1, .prompt_tokens = 1});
  host_.Sent(1, OkStatus());
  EXPECT_EQ(first->Finish(), grpc::StatusCode::OK);
  EXPECT_TRUE(Eventually([&] {
    const auto call = Run(Request(3));
    if (!Eventually([&] { return host_.Has(3); }, milliseconds(50))) return false;
    host_.Fail(3, Error(StatusCode::kInternal, "over"));
    return call->Finish() == grpc::StatusCode::OK;
  }));
}

TEST_F(PrefillServiceTest, ACallersEndIsItsTasksEnd) {
  Serve();
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  const auto call = Run(Request(1));
  ASSERT_TRUE(Eventually([&] { return host_.Has(1); }));
  call->context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return host_.WasCancelled(1); }));
  EXPECT_EQ(call->Finish(), grpc::StatusCode::CANCELLED);
}

TEST_F(PrefillServiceTest, ARefusedTaskIsNotCancelled) {
  Serve();
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  host_.Refuse(Error(StatusCode::kAlreadyExists, "that id is here"));
  EXPECT_EQ(Run(Request(1))->Finish(), grpc::StatusCode::ALREADY_EXISTS);
  service_.reset();
  EXPECT_FALSE(host_.WasCancelled(1));
}

TEST_F(PrefillServiceTest, RingsBeyondTheBoundAndSecondOnesAreTurnedAway) {
  Serve();
  const auto one = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  const auto again = Offer(1);
  EXPECT_TRUE(Eventually([&] { return again->peer_is_gone(); }));
  const auto other = Offer(2);
  ASSERT_TRUE(Eventually([&] { return IsLinked(2); }));
  const auto third = Offer(3);
  EXPECT_TRUE(Eventually([&] { return third->peer_is_gone(); }));
  EXPECT_FALSE(IsLinked(3));
  EXPECT_FALSE(one->peer_is_gone());
  EXPECT_EQ(host_.rings(), 2U);
}

TEST_F(PrefillServiceTest, WhoDoesNotAskForThePulseLosesHisRing) {
  Serve(milliseconds(300));
  const auto silent = Offer(1);
  ASSERT_TRUE(Eventually([&] { return host_.rings() == 1; }));
  ASSERT_TRUE(Eventually([&] { return host_.detached() == 1; }));
  EXPECT_TRUE(Eventually([&] { return silent->peer_is_gone(); }));
  EXPECT_EQ(host_.rings(), 0U);
}

TEST_F(PrefillServiceTest, ALinkThatIsDeadIsDetached) {
  Serve(seconds(2));
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  host_.SetLinkStatus(Error(StatusCode::kUnavailable, "dead"));
  EXPECT_FALSE(IsLinked(1));
  EXPECT_TRUE(Eventually([&] { return host_.detached() == 1 && host_.rings() == 0; }));
}

TEST_F(PrefillServiceTest, ItsEndEndsCallsAndDetachesRings) {
  Serve();
  const auto ring = Offer(1);
  ASSERT_TRUE(Eventually([&] { return IsLinked(1); }));
  const auto call = Run(Request(1));
  ASSERT_TRUE(Eventually([&] { return host_.Has(1); }));
  service_.reset();
  EXPECT_TRUE(host_.WasCancelled(1));
  EXPECT_EQ(host_.detached(), 1U);
  EXPECT_NE(call->Finish(), grpc::StatusCode::OK);
}

TEST_F(PrefillServiceTest, NeedsASoundInstance) {
  InstanceInfo no_socket = ScriptedInstance("service");
  no_socket.ring_socket_path.clear();
  EXPECT_EQ(ServePrefill({.instance = no_socket}, &host_).status().code(),
            StatusCode::kInvalidArgument);
  InstanceInfo no_name = ScriptedInstance("service");
  no_name.name.clear();
  EXPECT_EQ(ServePrefill({.instance = no_name}, &host_).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc
