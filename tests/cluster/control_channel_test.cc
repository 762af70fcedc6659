// What must hold: an address that says nowhere is refused with what is missing; a channel costs
// nothing until it is used; looking for a controller that is away takes milliseconds.
#include "cluster/control_channel.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

namespace ems {
namespace {

using std::chrono::seconds;

TEST(ControlChannelTest, AnAddressNeedsAPortThatSomebodyCanListenOn) {
  EXPECT_TRUE(CheckControllerAddress("localhost:7400").ok());
  EXPECT_TRUE(CheckControllerAddress("[::1]:7400").ok());
  for (const char* bad : {"", "localhost", "localhost:", "localhost:0", "localhost:70000"}) {
    const Status status = CheckControllerAddress(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(status).find("7400 is its port"), std::string_view::npos) << bad;
  }
}

TEST(ControlChannelTest, NothingIsConnectedBeforeACall) {
  const auto channel = MakeControlChannel("127.0.0.1:1", 1 << 20);
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_IDLE);
  const TimePoint begin = Clock::System().Now();
  DriveChannel(channel.get(), Deadline::After(seconds(60)));
  EXPECT_LT(Clock::System().Now() - begin, seconds(10));
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_IDLE) << "only a failed attempt is looked after";
}

TEST(ControlChannelTest, ADeadlineHoldsWhateverTheWallClockSays) {
  grpc::ClientContext context;
  SetDeadline(Deadline::After(seconds(30)), &context);
  const auto left = context.deadline() - std::chrono::system_clock::now();
  EXPECT_GT(left, seconds(25));
  EXPECT_LT(left, seconds(31));
}

}  // namespace
}  // namespace ems
