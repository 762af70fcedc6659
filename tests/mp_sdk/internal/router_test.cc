// What must hold: a call ends within its deadline with the right answer or an honest error,
// whatever the servers say; retries have an end.
#include "mp_sdk/internal/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checksum.h"
#include "common/thread_pool.h"
#include "tests/mp_sdk/internal/router_calls.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/shm_peer.h"

namespace ems::internal {
namespace {

using fabric::Outcome;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AnswerTo;
using testing::Eventually;
using testing::MakeValue;
using testing::MemoryServer;
using testing::ReadRequest;
using testing::ServeHello;
using testing::WirePeer;
using testing::WireRequest;
using wire::Op;
using wire::WireStatus;

// Two servers; the view of the client is what the test installs.
class RouterTest : public ::testing::Test {
 protected:
  RouterTest() { nodes_ = {ServerNode(1, one_.address()), ServerNode(2, two_.address())}; }
  void Install(uint64_t epoch, const std::vector<uint32_t>& owners) {
    views_.Install(ViewOf(epoch, nodes_, owners));
  }
  MemoryServer one_, two_;
  std::vector<NodeInfo> nodes_;
  ViewCache views_;
  Router router_{RouterOptions(), &views_, {}};
};

TEST_F(RouterTest, BatchesGoToTheOwnersAndComeBackInOrder) {
  Install(1, {1, 2});
  std::vector<std::string> names;
  names.reserve(50);
  for (int i = 0; i < 50; ++i) names.push_back("k" + std::to_string(i));
  Call put(Op::kPut, names);
  Call get(Op::kGet, names), exists(Op::kExists, names), remove(Op::kRemove, names);
  for (size_t i = 0; i < 50; ++i) {
    if (i % 5 != 0) put.Value(i, MakeValue("ns", names[i], i, i * 3000));
    if (i % 5 == 0) put.batch.items[i].open = false;
    get.Room(i, i * 3000 + 10);
  }
  put.Run(&router_);
  get.Run(&router_);
  exists.Run(&router_);
  remove.Run(&router_);
  for (size_t i = 0; i < 50; ++i) {
    const bool there = i % 5 != 0;
    EXPECT_TRUE(put.batch.items[i].status.ok()) << put.text(i);
    EXPECT_EQ(get.code(i), there ? StatusCode::kOk : StatusCode::kNotFound) << get.text(i);
    EXPECT_EQ(exists.code(i), there ? StatusCode::kOk : StatusCode::kNotFound);
    EXPECT_EQ(remove.code(i), there ? StatusCode::kOk : StatusCode::kNotFound);
    if (!there) continue;
    EXPECT_EQ(get.batch.items[i].value_bytes, i * 3000);
    EXPECT_EQ(exists.batch.items[i].value_bytes, i * 3000);
    EXPECT_TRUE(get.buffers[i].substr(0, i * 3000) == put.values[i]);
  }
  EXPECT_EQ(one_.store.size() + two_.store.size(), 0U);
  EXPECT_EQ(one_.store.counts().sessions + two_.store.counts().sessions, 2);
}

TEST_F(RouterTest, WrongOwnerLeadsToTheRightOneAfterARefresh) {
  two_.store.Insert("k", "value");
  one_.store.SetView(ViewVersion(1, 2));
  one_.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kWrongOwner};
  };
  Install(1, {1});
  int refreshed = 0;
  Router router(RouterOptions(), &views_, [&](Deadline) {
    ++refreshed;
    Install(2, {2});
  });
  Call get(Op::kGet, {"k"});
  get.Room(0, 5).Run(&router);
  EXPECT_EQ(get.code(), StatusCode::kOk) << get.text();
  EXPECT_EQ(get.buffers[0], "value");
  EXPECT_EQ(refreshed, 1);
  EXPECT_EQ(one_.store.counts().handled, 2) << "hello and one hop";
}

TEST_F(RouterTest, AViewThatNeverSettlesEndsAfterThreeHops) {
  for (MemoryServer* server : {&one_, &two_}) {
    server->store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
      return {.status = WireStatus::kWrongOwner};
    };
  }
  Install(1, {1, 2});
  Router router(RouterOptions(), &views_, [](Deadline) {});
  Call get(Op::kGet, {"a", "b"});
  const Duration took = get.Room(0, 5).Room(1, 5).Run(&router);
  EXPECT_EQ(get.code(0), StatusCode::kFailedPrecondition) << get.text(0);
  EXPECT_EQ(get.code(1), StatusCode::kFailedPrecondition) << get.text(1);
  EXPECT_LE(one_.store.counts().handled, 4);
  EXPECT_LT(took, seconds(3));
}

TEST_F(RouterTest, AnUnknownNamespaceIsFailedPrecondition) {
  one_.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kStaleNamespace};
  };
  Install(1, {1});
  Router router(RouterOptions(), &views_, [](Deadline) {});
  Call put(Op::kPut, {"a"});
  put.Value(0, "x").Run(&router);
  EXPECT_EQ(put.code(), StatusCode::kFailedPrecondition) << put.text();
}

TEST_F(RouterTest, NoRoomNowIsAskedAgainAfterThePause) {
  std::atomic<int> asked{0};
  one_.store.gate = [&asked](const wire::FrameHeader& header, SlotId) -> Outcome {
    const bool full = header.op == Op::kPut && ++asked <= 3;
    return {.status = full ? WireStatus::kRetryLater : WireStatus::kOk};
  };
  one_.store.retry_ms = 5;
  Install(1, {1});
  Call put(Op::kPut, {"a"});
  const Duration took = put.Value(0, "x").Run(&router_);
  EXPECT_EQ(put.code(), StatusCode::kOk) << put.text();
  EXPECT_GE(took, milliseconds(15));
  EXPECT_EQ(router_.stats().retries, 3U);
}

TEST_F(RouterTest, NoRoomForEverIsResourceExhaustedAtTheDeadline) {
  one_.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kRetryLater};
  };
  one_.store.retry_ms = 60;  // the last try is answered long before the deadline
  Install(1, {1});
  for (const std::vector<std::string>& keys : {std::vector<std::string>{"a"}, {"a", "b"}}) {
    Call put(Op::kPut, keys, milliseconds(100));
    for (size_t i = 0; i < keys.size(); ++i) put.Value(i, "x");
    const Duration took = put.Run(&router_);
    EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.text();
    EXPECT_LT(took, milliseconds(400));
  }
}

TEST_F(RouterTest, AFencedServerIsUnavailableAtOnce) {
  one_.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kFenced};
  };
  Install(1, {1});
  Call put(Op::kPut, {"a"});
  EXPECT_LT(put.Value(0, "x").Run(&router_), milliseconds(200));
  EXPECT_EQ(put.code(), StatusCode::kUnavailable);
}

TEST_F(RouterTest, WhatDoesNotFitOneAnswerComesInTheNext) {
  one_.store.batch_bytes_max = 2500;
  Install(1, {1});
  std::vector<std::string> names;
  for (int i = 0; i < 10; ++i) {
    names.push_back("k" + std::to_string(i));
    one_.store.Insert(names.back(), MakeValue("ns", names.back(), 1, 1000));
  }
  Call get(Op::kGet, names);
  for (size_t i = 0; i < 10; ++i) get.Room(i, 1000);
  get.Run(&router_);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(get.code(i), StatusCode::kOk) << get.text(i);
    EXPECT_TRUE(get.buffers[i] == MakeValue("ns", names[i], 1, 1000)) << i;
  }
}

TEST_F(RouterTest, OneValueTooLargeDoesNotStopTheOthers) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.value_bytes_max = 1 << 20;
  MemoryServer small(options);
  small.store.value_bytes_max = 1 << 20;
  nodes_[0].data_address = small.address();
  Install(1, {1});
  Call put(Op::kPut, {"a", "large", "c"});
  put.Value(0, "1").Value(1, std::string((1 << 20) + 1, 'l')).Value(2, "3").Run(&router_);
  EXPECT_EQ(put.code(0), StatusCode::kOk) << put.text(0);
  EXPECT_EQ(put.code(1), StatusCode::kOutOfRange) << put.text(1);
  EXPECT_EQ(put.code(2), StatusCode::kOk) << put.text(2);
}

TEST_F(RouterTest, AValueFarTooLargeIsOutOfRange) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.value_bytes_max = 1 << 20;
  MemoryServer small(options);
  small.store.value_bytes_max = 1 << 20;
  nodes_[0].data_address = small.address();
  Install(1, {1});
  for (int i = 0; i < 3; ++i) {
    Call put(Op::kPut, {"large"});
    put.Value(0, std::string(64 << 20, 'l')).Run(&router_);
    EXPECT_EQ(put.code(), StatusCode::kOutOfRange) << put.text();
  }
}

TEST_F(RouterTest, NobodyOwnsTheSlot) {
  Install(1, {0});
  Call get(Op::kGet, {"a"});
  get.Run(&router_);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable);
}

TEST_F(RouterTest, NoViewYetIsUnavailable) {
  Call get(Op::kGet, {"a"});
  EXPECT_LT(get.Run(&router_), milliseconds(50));
  EXPECT_EQ(get.code(), StatusCode::kUnavailable);
}

TEST_F(RouterTest, ADeadServerFailsFastTheOthersAnswer) {
  two_.store.Insert("b", "2");
  one_.server->Stop(Duration(0));
  Install(1, {1, 2});
  for (int i = 0; i < 20; ++i) {
    Call get(Op::kGet, {"a", "b"});
    const Duration took = get.Room(0, 1).Room(1, 1).Run(&router_);
    EXPECT_EQ(get.code(0), StatusCode::kUnavailable) << get.text(0);
    EXPECT_EQ(get.code(1), StatusCode::kOk) << get.text(1);
    EXPECT_LE(took, milliseconds(50));
  }
  EXPECT_EQ(router_.stats().breaker_opened, 1U);
}

TEST_F(RouterTest, AnIdleConnectionThatTheServerClosedIsReplaced) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.idle_timeout = milliseconds(30);
  MemoryServer server(options);
  server.store.Insert("k", "value");
  nodes_[0].data_address = server.address();
  Install(1, {1});
  for (int i = 0; i < 3; ++i) {
    Call get(Op::kGet, {"k"});
    get.Room(0, 5).Run(&router_);
    EXPECT_EQ(get.code(), StatusCode::kOk) << get.text();
    ASSERT_TRUE(Eventually([&] { return server.store.counts().live_sessions.load() == 0; }));
  }
  EXPECT_EQ(router_.stats().retries, 2U);
  EXPECT_EQ(router_.stats().breaker_opened, 0U);
}

// Sent on such a connection a Put would have an unknown outcome.
TEST_F(RouterTest, APutDoesNotGoOutOnAConnectionThatTheServerClosed) {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.idle_timeout = milliseconds(30);
  MemoryServer server(options);
  nodes_[0].data_address = server.address();
  Install(1, {1});
  for (int i = 0; i < 3; ++i) {
    Call put(Op::kPut, {"k" + std::to_string(i)});
    put.Value(0, "value").Run(&router_);
    EXPECT_EQ(put.code(), StatusCode::kOk) << put.text();
    ASSERT_TRUE(Eventually([&] { return server.store.counts().live_sessions.load() == 0; }));
  }
  EXPECT_EQ(router_.stats().retries, 0U);
  EXPECT_EQ(server.store.counts().sessions, 3);
}

// Opposite orders of servers, one connection each: calls must not hold one and wait for the other.
TEST_F(RouterTest, CallsOverSeveralServersDoNotWaitForEachOther) {
  Install(1, {1, 2});
  Router router(RouterOptions(1), &views_, {});
  std::vector<Thread> threads;
  std::atomic<int> failed{0};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back("caller" + std::to_string(t), [&, t] {
      for (int i = 0; i < 300; ++i) {
        Call exists(Op::kExists, {"a", "b"});
        if (t % 2 == 1) std::swap(exists.batch.items[0], exists.batch.items[1]);
        exists.Run(&router);
        for (size_t item = 0; item < 2; ++item) {
          if (exists.code(item) != StatusCode::kNotFound) ++failed;
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(failed, 0);
}

TEST_F(RouterTest, ManyThreadsShareFewConnections) {
  Install(1, {1, 2});
  Router router(RouterOptions(2), &views_, {});
  std::vector<Thread> threads;
  std::atomic<int> wrong{0};
  threads.reserve(6);
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back("caller" + std::to_string(t), [&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string a = fmt::format("a{}-{}", t, i), b = fmt::format("b{}-{}", t, i);
        Call put(Op::kPut, {a, b});
        put.Value(0, MakeValue("ns", a, 1, 5000)).Value(1, MakeValue("ns", b, 1, 70'000));
        put.Run(&router);
        Call get(Op::kGet, {a, b});
        get.Room(0, 5000).Room(1, 70'000).Run(&router);
        if (get.buffers[0] != put.values[0] || get.buffers[1] != put.values[1]) ++wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(one_.store.counts().sessions, 2);
}

TEST(RouterFaultTest, AServerThatNeverAnswersCostsTheDeadline) {
  Scripted s([](WirePeer* peer, int) {
    if (ServeHello(peer)) (void)peer->WaitClosed();
  });
  Call get(Op::kGet, {"k"}, milliseconds(100));
  const Duration took = get.Room(0, 1).Run(&s.router);
  EXPECT_EQ(get.code(), StatusCode::kDeadlineExceeded) << get.text();
  EXPECT_GE(took, milliseconds(90));
  EXPECT_LE(took, milliseconds(500));
}

TEST(RouterFaultTest, AServerThatTakesAndNeverGreetsIsUnavailable) {
  Scripted s([](WirePeer* peer, int) { (void)peer->WaitClosed(); });
  Call get(Op::kGet, {"k"}, seconds(3));
  const Duration took = get.Room(0, 1).Run(&s.router);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << get.text();
  EXPECT_LE(took, seconds(1)) << "connect_timeout is 200 ms";
}

TEST(RouterFaultTest, AConnectionThatBreaksTwiceIsGivenUp) {
  Scripted s([](WirePeer* peer, int) {
    if (ServeHello(peer)) (void)ReadRequest(peer);
  });
  Call get(Op::kGet, {"k"});
  get.Room(0, 1).Run(&s.router);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << get.text();
  EXPECT_EQ(s.server.connections(), 2);
}

TEST(RouterFaultTest, AnAnswerThatBreaksInTheMiddleIsAnErrorNotAValue) {
  Scripted s([](WirePeer* peer, int) {
    if (!ServeHello(peer)) return;
    std::optional<WireRequest> request = ReadRequest(peer);
    if (request) (void)peer->Send(AnswerTo(request->header, std::string(1000, 'v')).substr(0, 500));
  });
  Call get(Op::kGet, {"k"});
  get.Room(0, 1000).Run(&s.router);
  EXPECT_EQ(get.code(), StatusCode::kUnavailable) << get.text();
}

// The first answer comes damaged. Then: damaged again, right, a miss, none.
TEST(RouterFaultTest, AValueWithAWrongChecksumIsAskedForOnceMore) {
  const std::vector<StatusCode> ends = {StatusCode::kDataLoss, StatusCode::kOk,
                                        StatusCode::kNotFound, StatusCode::kDataLoss};
  for (size_t end = 0; end < ends.size(); ++end) {
    std::atomic<int> requests{0};
    Scripted s([&](WirePeer* peer, int) {
      if (!ServeHello(peer)) return;
      while (const std::optional<WireRequest> request = ReadRequest(peer)) {
        const bool again = ++requests > 1;
        EXPECT_EQ((request->header.flags & wire::kFlagCheck) != 0, again);
        std::string answer = AnswerTo(request->header, std::string(1000, 'v'));
        if (!again || end == 0) answer[500] = 'w';
        if (again && end == 2) answer = AnswerTo(request->header, "", WireStatus::kMiss);
        if (again && end == 3) return (void)peer->WaitClosed();
        if (!peer->Send(answer)) return;
      }
    });
    Call get(Op::kGet, {"k"}, end == 3 ? milliseconds(200) : seconds(5));
    EXPECT_LE(get.Room(0, 1000).Run(&s.router), seconds(1)) << end;
    EXPECT_EQ(get.code(), ends[end]) << get.text();
    EXPECT_EQ(requests, 2);
    EXPECT_EQ(s.router.stats().checksum_mismatches, end == 0 ? 2U : 1U);
  }
}

// A server that always says "did not fit", even for the first item.
TEST(RouterFaultTest, BatchFullForEverEndsAtTheDeadline) {
  std::atomic<int> requests{0};
  Scripted s([&requests](WirePeer* peer, int) {
    if (!ServeHello(peer)) return;
    while (std::optional<WireRequest> request = ReadRequest(peer)) {
      ++requests;
      std::string results;
      for (int i = 0; i < 2; ++i) {
        const wire::ItemResult full{.status = WireStatus::kBatchFull};
        testing::AppendRaw(&results, wire::RawBytes(full));
      }
      if (!peer->Send(AnswerTo(request->header, results))) return;
    }
  });
  Call get(Op::kGet, {"a", "b"}, milliseconds(100));
  get.Room(0, 1).Room(1, 1).Run(&s.router);
  EXPECT_NE(get.code(), StatusCode::kOk);
  EXPECT_LE(requests, 100) << "asking in a tight loop";
}

TEST(RouterFaultTest, AnswersThatMakeNoSenseAreDataLoss) {
  Scripted s([](WirePeer* peer, int connection) {
    if (!ServeHello(peer)) return;
    std::optional<WireRequest> request = ReadRequest(peer);
    if (!request) return;
    // A table for another number of items, an unknown item status, values beyond the body.
    std::string results;
    wire::ItemResult result{.status = WireStatus::kOk, .value_bytes = 1};
    if (connection == 1) result.status = static_cast<WireStatus>(55);
    if (connection == 2) result.value_bytes = uint64_t{1} << 40;
    for (int i = 0; i < (connection == 0 ? 1 : 2); ++i) {
      testing::AppendRaw(&results, wire::RawBytes(result));
    }
    (void)peer->Send(AnswerTo(request->header, results + "v"));
    (void)peer->WaitClosed(milliseconds(500));
  });
  for (int i = 0; i < 3; ++i) {
    Call get(Op::kGet, {"a", "b"});
    get.Room(0, 1).Room(1, 1).Run(&s.router);
    EXPECT_NE(get.code(1), StatusCode::kOk) << i;
    EXPECT_NE(get.code(1), StatusCode::kNotFound) << i;
  }
}

TEST(RouterAskTest, GivesTheBodyOfTheAnswer) {
  MemoryServer server;
  ViewCache views;
  Router router(RouterOptions(), &views, {});
  const NodeInfo node = ServerNode(1, server.address());
  Result<std::string> stats = router.Ask(node, Op::kStats, Deadline::After(seconds(2)));
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(*stats, "{\"objects\":1}");
}

TEST(RouterStagingTest, ValuesGoWithTheirBytesWhereTheServerDoesNotTakeThemInPlace) {
  testing::PoolImage image;
  testing::ShmPeer peer(&image);  // takes the memory
  peer.Start();
  MemoryServer server;  // but knows no staged Puts
  LocalServers locals({.ns = testing::PoolImage::kNs,
                       .attach_timeout = seconds(1),
                       .host_id = "here",
                       .token = {}});
  ViewCache views;
  NodeInfo node = ServerNode(1, server.address());
  node.unix_path = peer.path();
  node.host_id = "here";
  ASSERT_TRUE(views.Install(ViewOf(1, {node}, {1})));
  server.store.SetView(ViewVersion(1, 1));
  Router router(RouterOptions(), &views, {});
  router.Use(&locals);
  locals.Follow(views.view());
  const auto staging = *StagingMemory::Create(64 * kKiB);
  locals.Offer(staging);
  ASSERT_TRUE(Eventually([&] { return locals.StagedFor(NodeId(1)).has_value(); }));

  for (const size_t count : {size_t{1}, size_t{3}}) {
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      names.push_back("key" + std::to_string(count) + std::to_string(i));
    }
    Call call(Op::kPut, names);
    StagingBuffer buffer = *staging->Allocate(1000);
    std::ranges::fill(buffer.bytes(), std::byte{'s'});
    for (BatchItem& item : call.batch.items) {
      item.value = ConstBytes(buffer.bytes());
      item.staged_offset = staging->OffsetOf(buffer.bytes());
    }
    router.Run(&call.batch);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(call.batch.items[i].status.ok()) << call.batch.items[i].status;
      ASSERT_NE(server.store.Find(names[i]), nullptr);
      EXPECT_EQ(*server.store.Find(names[i]), std::string(1000, 's'));
    }
    EXPECT_FALSE(locals.StagedFor(NodeId(1))) << "it is not tried again";
  }
}

TEST(RouterStagingTest, ReadsFollowTheViewThatIsUsed) {
  MemoryServer server;
  LocalServers locals(
      {.ns = {NamespaceId(1), 1}, .attach_timeout = seconds(1), .host_id = "here", .token = {}});
  ViewCache views;
  ASSERT_TRUE(views.Install(ViewOf(1, {ServerNode(1, server.address())}, {1})));
  Router router(RouterOptions(), &views, {});
  router.Use(&locals);
  Call call(Op::kExists, {"key"});
  router.Run(&call.batch);
  const ReaderGate::Pass pass = locals.gate().Enter();
  ASSERT_NE(locals.routes(), nullptr);
  EXPECT_EQ(locals.routes()->view, ViewVersion(1, 1).packed());
}

}  // namespace
}  // namespace ems::internal
