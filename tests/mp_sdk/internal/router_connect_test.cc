// What must hold: a server that cannot be connected to, or whose connections are all in use, holds
// up nothing that goes to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"

namespace ems::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
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

TEST(RouterConnectTest, ServersThatDoNotGreetHoldUpNothingThatGoesToOthers) {
  SilentServer silent[2];
  MemoryServer well;
  well.store.Insert("c", "value");
  ViewCache views;
  views.Install(ViewOf(1,
                       {ServerNode(1, silent[0].address()), ServerNode(2, silent[1].address()),
                        ServerNode(3, well.address())},
                       {1, 2, 3}));
  ClientOptions options = RouterOptions();
  options.connect_timeout = seconds(10);
  Router router(options, &views, {});
  Call get(Op::kGet, {"a", "b", "c"}, seconds(20));
  get.Room(0, 5).Room(1, 5).Room(2, 5);
  Thread caller("caller", [&] { get.Run(&router); });
  EXPECT_TRUE(Eventually([&] { return well.store.counts().handled == 2; }, seconds(5)))
      << "its greeting, and the request";
  for (SilentServer& server : silent) server.Release();
  caller.Join();
  EXPECT_EQ(get.code(0), StatusCode::kUnavailable) << get.text(0);
  EXPECT_EQ(get.code(1), StatusCode::kUnavailable) << get.text(1);
  EXPECT_THAT(get.text(1), ::testing::AllOf(::testing::HasSubstr("server2"),
                                            ::testing::HasSubstr(silent[1].address())));
  EXPECT_EQ(get.code(2), StatusCode::kOk) << get.text(2);
}

TEST(RouterConnectTest, ServersThatDoNotGreetCostOneTimeoutTogether) {
  SilentServer silent[4];
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 0; i < 4; ++i) nodes.push_back(ServerNode(i + 1, silent[i].address()));
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

}  // namespace
}  // namespace ems::internal
