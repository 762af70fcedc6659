// What must hold: a server that cannot be connected to, or whose connections are all in use, holds
// up nothing that goes to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/circuit_breaker.h"
#include "common/thread_pool.h"
#include "fabric/net/name_lookup.h"
#include "fabric/net/socket.h"
#include "fabric/rpc/rpc_channel.h"
#include "mp_sdk/internal/connection_pool.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_resolver.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/temp_path.h"

namespace ems::internal {
namespace {

using fabric::NameLookup;
using fabric::RpcChannel;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::FakeResolver;
using testing::MemoryServer;
using testing::ReadRequest;
using testing::ServeHello;
using testing::WirePeer;
using wire::Op;

// A connection is taken, and no greeting comes before `release`.
class SilentServer final {
 public:
  std::string address() const { return server_.address(); }
  void Release() { release_.Set(); }

 private:
  StopFlag release_;
  testing::ScriptedServer server_{[this](WirePeer*, int) { release_.WaitFor(seconds(30)); }};
};

// A server's address by a name, another one each time: the process remembers them.
std::string NamedAddress(const std::string& address) {
  static int names = 0;
  return "ems-server-" + std::to_string(++names) + address.substr(address.rfind(':'));
}

// Two servers that do not greet, at these addresses, and a third one that is well.
void ExpectTheThirdIsServed(const std::vector<std::string>& addresses,
                            const std::function<void()>& release) {
  MemoryServer well;
  well.store.Insert("c", "value");
  ViewCache views;
  views.Install(ViewOf(
      1, {ServerNode(1, addresses[0]), ServerNode(2, addresses[1]), ServerNode(3, well.address())},
      {1, 2, 3}));
  ClientOptions options = RouterOptions();
  options.connect_timeout = seconds(10);
  Router router(options, &views, {});
  Call get(Op::kGet, {"a", "b", "c"}, seconds(20));
  get.Room(0, 5).Room(1, 5).Room(2, 5);
  Thread caller("caller", [&] { get.Run(&router); });
  EXPECT_TRUE(Eventually([&] { return well.store.counts().handled == 2; }, seconds(5)))
      << "its greeting, and the request";
  release();
  caller.Join();
  EXPECT_EQ(get.code(0), StatusCode::kUnavailable) << get.text(0);
  EXPECT_EQ(get.code(1), StatusCode::kUnavailable) << get.text(1);
  EXPECT_THAT(get.text(1), ::testing::AllOf(::testing::HasSubstr("server2"),
                                            ::testing::HasSubstr(addresses[1])));
  EXPECT_EQ(get.code(2), StatusCode::kOk) << get.text(2);
}

TEST(RouterConnectTest, ServersThatDoNotGreetHoldUpNothingThatGoesToOthers) {
  SilentServer silent[2];
  ExpectTheThirdIsServed({silent[0].address(), silent[1].address()}, [&] {
    for (SilentServer& server : silent) server.Release();
  });
}

TEST(RouterConnectTest, NorDoThoseThatHaveNames) {
  FakeResolver resolver;
  resolver.Answer("127.0.0.1");
  SilentServer silent[2];
  std::vector<std::string> addresses;
  for (SilentServer& server : silent) {
    addresses.push_back(NamedAddress(server.address()));
    const auto named = fabric::ParseAddress(addresses.back());
    ASSERT_TRUE(NameLookup::Shared().Find(named->host, named->port, seconds(20)).ok());
  }
  ExpectTheThirdIsServed(addresses, [&] {
    for (SilentServer& server : silent) server.Release();
  });
}

TEST(RouterConnectTest, NorDoNamesThatAreNotAnswered) {
  FakeResolver resolver;
  resolver.BeSilent();
  ExpectTheThirdIsServed({NamedAddress(":7"), NamedAddress(":7")},
                         [&] { resolver.asked().end.Set(); });
}

// Four servers of which none can be reached.
void ExpectOneTimeoutTogether(const std::vector<NodeInfo>& nodes) {
  ViewCache views;
  views.Install(ViewOf(1, nodes, {1, 2, 3, 4}));
  ClientOptions options = RouterOptions();
  options.connect_timeout = milliseconds(500);
  Router router(options, &views, {});
  Call get(Op::kGet, {"a", "b", "c", "d"}, seconds(20));
  const Duration took = get.Run(&router);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(get.code(i), StatusCode::kUnavailable) << get.text(i);
  EXPECT_GE(took, milliseconds(490));
  EXPECT_LT(took, milliseconds(1500)) << "four times as long one after the other";
}

TEST(RouterConnectTest, NamesThatAreNotAnsweredCostOneTimeoutTogether) {
  FakeResolver resolver;
  resolver.BeSilent();
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 1; i <= 4; ++i) nodes.push_back(ServerNode(i, NamedAddress(":7")));
  ExpectOneTimeoutTogether(nodes);
}

TEST(RouterConnectTest, ThatThereIsNoSuchNameIsSaidAtOnce) {
  FakeResolver resolver;
  resolver.Answer("");
  ViewCache views;
  views.Install(ViewOf(1, {ServerNode(1, NamedAddress(":7"))}, {1}));
  ClientOptions options = RouterOptions();
  options.connect_timeout = seconds(10);
  Router router(options, &views, {});
  Call call(Op::kExists, {"a"}, seconds(20));
  EXPECT_LT(call.Run(&router), seconds(5));
  EXPECT_EQ(call.code(), StatusCode::kUnavailable) << call.text();
}

TEST(RouterConnectTest, OfANameEachAddressIsTried) {
  FakeResolver resolver;
  resolver.Answer("127.0.0.9 127.0.0.1");
  MemoryServer well;
  ViewCache views;
  views.Install(ViewOf(1, {ServerNode(1, NamedAddress(well.address()))}, {1}));
  Router router(RouterOptions(), &views, {});
  for (int i = 0; i < 2; ++i) {
    Call call(Op::kExists, {"a"}, seconds(20));
    call.Run(&router);
    EXPECT_EQ(call.code(), StatusCode::kNotFound) << call.text();
  }
  EXPECT_EQ(router.stats().breaker_opened, 0);
}

TEST(RouterConnectTest, AlsoTheFirstAddressWhereTheSecondOneWasReached) {
  FakeResolver resolver;
  resolver.Answer("127.0.0.9 127.0.0.1");
  MemoryServer well;
  Peer peer(*fabric::ParseAddress(NamedAddress(well.address())), 8, seconds(20));
  bool failed = false;
  ASSERT_TRUE(peer.LookUp(TimePoint::max(), seconds(20), &failed).ok());
  ASSERT_TRUE(peer.NextAddress(0));
  auto channel = *peer.TryTake(false, Deadline::After(seconds(20)), &failed, false);
  ASSERT_NE(channel, nullptr);
  RpcChannel* const one = channel.get();
  Status driven;
  fabric::RunAll(std::span(&one, 1), Deadline::After(seconds(20)), std::span(&driven, 1));
  ASSERT_TRUE(peer.CheckOpened(*one, driven, 1).ok());
  peer.Return(nullptr);
  EXPECT_TRUE(peer.NextAddress(1)) << "the first one has not been tried since";
  EXPECT_FALSE(peer.NextAddress(2));
}

// As many as may be looked up at once are, and are not answered.
TEST(RouterConnectTest, ANameThatOthersKeepFromBeingLookedUpIsNoFailureOfItsServer) {
  FakeResolver resolver;
  resolver.BeSilent();
  for (size_t i = 0; i < NameLookup::kLookupsMax; ++i) {
    const auto other = fabric::ParseAddress(NamedAddress(":7"));
    ASSERT_TRUE(Eventually([&] {
      return NameLookup::Shared().Find(other->host, other->port, {}).status().code() ==
             StatusCode::kDeadlineExceeded;
    }));
  }
  ViewCache views;
  views.Install(ViewOf(1, {ServerNode(1, NamedAddress(":7"))}, {1}));
  ClientOptions options = RouterOptions();
  options.connect_timeout = milliseconds(20);
  Router router(options, &views, {});
  for (int i = 0; i <= CircuitBreaker::kFailuresToOpen; ++i) {
    Call call(Op::kExists, {"a"}, seconds(20));
    EXPECT_GE(call.Run(&router), milliseconds(19)) << "a place may become free";
    EXPECT_EQ(call.code(), StatusCode::kUnavailable);
    EXPECT_THAT(call.text(), ::testing::HasSubstr("other names are not answered"));
  }
  EXPECT_EQ(router.stats().breaker_opened, 0);
}

TEST(RouterConnectTest, ServersThatDoNotGreetCostOneTimeoutTogether) {
  SilentServer silent[4];
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 0; i < 4; ++i) nodes.push_back(ServerNode(i + 1, silent[i].address()));
  ExpectOneTimeoutTogether(nodes);
  for (SilentServer& server : silent) server.Release();
}

// One connection a server. The call that waits for the one in use holds no other one meanwhile.
TEST(RouterConnectTest, ACallThatWaitsForAConnectionHoldsNone) {
  StopFlag release;
  testing::ScriptedServer slow([&](WirePeer* peer, int) {
    if (!ServeHello(peer) || !ReadRequest(peer)) return;
    release.WaitFor(seconds(30));
  });
  MemoryServer well;
  ViewCache views;
  views.Install(ViewOf(1, {ServerNode(1, well.address()), ServerNode(2, slow.address())}, {1, 2}));
  Router router(RouterOptions(1), &views, {});
  const auto to_slow = [] {
    Call call(Op::kExists, {"x"}, seconds(20));
    call.batch.items[0].slot = SlotId(1);
    return call;
  };
  Call first = to_slow();
  Call both(Op::kExists, {"a", "b"}, seconds(20));
  Thread one("first", [&] { first.Run(&router); });
  EXPECT_TRUE(Eventually([&] { return slow.connections() == 1; }, seconds(5)));
  Thread two("both", [&] { both.Run(&router); });
  EXPECT_TRUE(Eventually([&] { return well.store.counts().handled == 2; }, seconds(5)));
  Call third(Op::kExists, {"a"}, seconds(5));
  third.Run(&router);
  EXPECT_EQ(third.code(), StatusCode::kNotFound) << third.text();
  release.Set();
  one.Join();
  two.Join();
  EXPECT_EQ(both.code(0), StatusCode::kNotFound) << both.text(0);
}

// One connection a server.
TEST(RouterConnectTest, WhatIsAnsweredHoldsNoConnectionWhileAnotherServerIsWaitedFor) {
  StopFlag release;
  testing::ScriptedServer slow([&](WirePeer* peer, int) {
    if (!ServeHello(peer) || !ReadRequest(peer)) return;
    release.WaitFor(seconds(30));
  });
  MemoryServer well;
  ViewCache views;
  views.Install(ViewOf(1, {ServerNode(1, well.address()), ServerNode(2, slow.address())}, {1, 2}));
  Router router(RouterOptions(1), &views, {});
  Call both(Op::kExists, {"a", "b"}, seconds(20));
  Thread caller("both", [&] { both.Run(&router); });
  EXPECT_TRUE(Eventually([&] { return well.store.counts().handled == 2; }, seconds(5)));
  Call other(Op::kExists, {"a"}, seconds(5));
  other.Run(&router);
  EXPECT_EQ(other.code(), StatusCode::kNotFound) << other.text();
  release.Set();
  caller.Join();
  EXPECT_EQ(both.code(0), StatusCode::kNotFound) << both.text(0);
}

// In a container that has the path of the server's socket, and another server behind it.
TEST(RouterConnectTest, ASocketOfAnotherServerCostsNoCall) {
  const testing::TempPath path("socket");
  MemoryServer stranger(testing::ServerOptionsAt(path.path()));
  MemoryServer meant;
  meant.store.Insert("k", "value");
  NodeInfo node = ServerNode(1, meant.address());
  meant.store.boot_id = node.boot_id;
  node.unix_path = path.path();
  node.host_id = fabric::HostId();
  ViewCache views;
  views.Install(ViewOf(1, {node}, {1}));
  ClientOptions options = RouterOptions();
  options.transport = TransportChoice::kAuto;
  {
    Router router(options, &views, {});
    Call get(Op::kGet, {"k"});
    get.Room(0, 5).Run(&router);
    EXPECT_EQ(get.code(), StatusCode::kOk) << get.text();
    EXPECT_EQ(get.buffers[0], "value");
    EXPECT_EQ(router.stats().breaker_opened, 0U);
  }
  Router asked_first(options, &views, {});
  EXPECT_TRUE(asked_first.Ask(node, Op::kPing, Deadline::After(seconds(5))).ok());
  EXPECT_EQ(stranger.store.counts().handled, 2) << "greetings alone";
}

}  // namespace
}  // namespace ems::internal
