#include "cluster/channel_list.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

namespace ems {
namespace {

// Accepts connections, and knows no call.
struct ListeningProcess {
  ListeningProcess() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&none);
    server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
  int port = 0;
  grpc::CallbackGenericService none;
  std::unique_ptr<grpc::Server> server;
};

Deadline PickTime() { return Deadline::After(std::chrono::seconds(5)); }

TEST(ChannelListTest, WhatIsNoAddressIsSaid) {
  for (const char* wrong : {"", ",", "localhost", "a:1,b", "a:1 b:0"})
    EXPECT_EQ(ChannelList(wrong, 1 << 20).fault().code(), StatusCode::kInvalidArgument) << wrong;
  std::string many;
  for (size_t i = 0; i <= ChannelList::kMost; ++i) many += "a:1,";
  EXPECT_EQ(ChannelList(many, 1 << 20).fault().code(), StatusCode::kInvalidArgument);
  const ChannelList two("a:1, b:2", 1 << 20);
  EXPECT_EQ(two.fault(), OkStatus());
  EXPECT_EQ(two.size(), 2u);
  EXPECT_EQ(two.address(1), "b:2");
}

TEST(ChannelListTest, OneThatCannotBeReachedIsPassedOver) {
  ListeningProcess a, b;
  ChannelList list("127.0.0.1:1," + a.address() + "," + b.address(), 1 << 20);
  EXPECT_EQ(list.Pick(PickTime()), 1u);
  EXPECT_EQ(list.Pick(PickTime()), 1u) << "and is asked next time";
  list.Leave(0);
  EXPECT_EQ(list.Pick(PickTime()), 1u) << "another has been picked since";
  list.Leave(1);
  EXPECT_EQ(list.Pick(PickTime()), 2u);
  EXPECT_TRUE(list.Follow(a.address()));
  EXPECT_EQ(list.Pick(PickTime()), 1u);
  EXPECT_FALSE(list.Follow("elsewhere:1"));
}

TEST(ChannelListTest, WithNobodyThereItTakesLittleTime) {
  ChannelList list("127.0.0.1:1,127.0.0.1:2", 1 << 20);
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(list.Pick(PickTime()), 0u);
  EXPECT_EQ(list.PickConnected(PickTime()), std::nullopt);
  EXPECT_LT(Clock::System().Now() - start, std::chrono::seconds(4));
}

}  // namespace
}  // namespace ems
