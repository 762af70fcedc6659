// What must hold: callers are checked and bounded; one that reads slowly costs one message.
#include "pdc/rpc/decode_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/pdc.grpc.pb.h"
#include "tests/support/eventually.h"
#include "tests/support/scripted_decode.h"
#include "tests/support/scripted_prefill.h"

namespace ems::pdc {
namespace {

using std::chrono::seconds;
using testing::Eventually;
using testing::ScriptedDecode;
using testing::ScriptedInstance;

class DecodeServiceTest : public ::testing::Test {
 protected:
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
    v1::GenerateEvent event;
    grpc::StatusCode Finish() {
      while (reader->Read(&event)) {
      }
      return reader->Finish().error_code();
    }
  };
  void Serve(size_t streams_max = 1024) {
    auto started =
        ServeDecode({.instance = ScriptedInstance(""), .streams_max = streams_max}, &decode_);
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
    stub_ = v1::Decode::NewStub(
        grpc::CreateChannel(service_->address(), grpc::InsecureChannelCredentials()));
  }
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.add_prompt(5);
    request.set_tokens_max(1'000'000);
    request.mutable_sampler()->set_top_p(1);
    request.set_time_us(60'000'000);
    return request;
  }
  std::unique_ptr<Call> Generate(const v1::GenerateRequest& request,
                                 Duration timeout = seconds(60)) const {
    auto call = std::make_unique<Call>();
    if (timeout > Duration::zero())
      call->context.set_deadline(std::chrono::system_clock::now() + timeout);
    call->reader = stub_->Generate(&call->context, request);
    return call;
  }
  bool HasTask() {
    return Eventually([&] { return decode_.Last().has_value(); });
  }

  ScriptedDecode decode_;
  std::unique_ptr<InstanceService> service_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

TEST_F(DecodeServiceTest, ASlowReaderGetsFewerAndLongerMessages) {
  Serve();
  const auto call = Generate(Request());
  ASSERT_TRUE(HasTask());
  const auto sink = decode_.Take(decode_.Last()->id);
  // Far more than the connection holds; nothing of it blocks.
  constexpr uint32_t kCalls = 5'000;
  std::vector<TokenId> all;
  sink->OnPrompt(1, 0);
  for (uint32_t i = 0; i < kCalls; ++i) {
    const std::vector<TokenId> some(100, i % 264);
    sink->OnTokens(some);
    all.insert(all.end(), some.begin(), some.end());
  }
  sink->OnEnd(FinishReason::kStop);
  std::vector<TokenId> read;
  uint32_t messages = 0;
  while (call->reader->Read(&call->event)) {
    ++messages;
    EXPECT_EQ(call->event.has_prompt(), messages == 1);
    read.insert(read.end(), call->event.tokens().begin(), call->event.tokens().end());
  }
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(read, all);
  EXPECT_EQ(call->event.end().reason(), v1::GenerateEvent::End::REASON_STOP);
  EXPECT_LT(messages, kCalls / 2);
}

TEST_F(DecodeServiceTest, CallsThatAreNotSoundReachNobody) {
  Serve();
  EXPECT_EQ(Generate(Request(), Duration::zero())->Finish(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::GenerateRequest unknown = Request();
  unknown.add_prompt(264);
  EXPECT_EQ(Generate(unknown)->Finish(), grpc::StatusCode::INVALID_ARGUMENT);
  decode_.Refuse(Error(StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(Generate(Request())->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(decode_.tasks(), 0U);
}

TEST_F(DecodeServiceTest, CallsBeyondTheBoundAreRefused) {
  Serve(1);
  const auto first = Generate(Request());
  ASSERT_TRUE(HasTask());
  EXPECT_EQ(Generate(Request())->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(decode_.tasks(), 1U);
}

TEST_F(DecodeServiceTest, ACallersEndIsItsTasksEnd) {
  Serve();
  const auto call = Generate(Request());
  ASSERT_TRUE(HasTask());
  const auto sink = decode_.SinkOf(decode_.Last()->id);
  call->context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return decode_.tasks() == 0; }));
  sink->OnTokens(std::vector<TokenId>{1});  // to nobody
}

TEST_F(DecodeServiceTest, EachTaskHasAnIdOfItsOwn) {
  Serve();
  const auto one = Generate(Request()), other = Generate(Request());
  EXPECT_TRUE(Eventually([&] { return decode_.tasks() == 2; }));
  EXPECT_GE(decode_.Last()->id, kFirstServedTask);
}

}  // namespace
}  // namespace ems::pdc
