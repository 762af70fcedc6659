// What must hold: a greeting that is refused, late, dripping or foreign is an error that says why,
// by the deadline.
#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "fabric/rpc/rpc_channel.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AnswerTo;
using testing::Drip;
using testing::MemoryServer;
using testing::ScriptedServer;
using testing::WirePeer;
using wire::WireStatus;

TEST(RpcChannelOpenTest, AFullServerIsResourceExhausted) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.connections_max = 1;
  MemoryServer server(options);
  Result<Address> address = ParseAddress(server.address());
  Result<std::unique_ptr<RpcChannel>> first = RpcChannel::Open(*address, seconds(2));
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 0; i < 20; ++i) {
    Result<std::unique_ptr<RpcChannel>> second = RpcChannel::Open(*address, seconds(2));
    EXPECT_EQ(second.status().code(), StatusCode::kResourceExhausted) << second.status();
  }
}

std::string HelloAnswer(WirePeer* peer, const wire::HelloBody& hello, WireStatus status) {
  std::optional<testing::WireRequest> request = testing::ReadRequest(peer);
  if (!request) return "";
  return AnswerTo(request->header,
                  status == WireStatus::kOk ? AsText(wire::RawBytes(hello)) : "1 to 1", status);
}

TEST(RpcChannelOpenTest, NoCommonVersionIsFailedPrecondition) {
  ScriptedServer newer([](WirePeer* peer, int) {
    const wire::HelloBody hello{.version_min = 5, .version_max = 6};
    (void)peer->Send(HelloAnswer(peer, hello, WireStatus::kOk));
    (void)peer->WaitClosed();
  });
  EXPECT_EQ(RpcChannel::Open(newer.socket_address(), seconds(5)).status().code(),
            StatusCode::kFailedPrecondition);
  ScriptedServer refuses([](WirePeer* peer, int) {
    (void)peer->Send(HelloAnswer(peer, {}, WireStatus::kVersion));
    (void)peer->WaitClosed();
  });
  EXPECT_EQ(RpcChannel::Open(refuses.socket_address(), seconds(5)).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST(RpcChannelOpenTest, ASilentPeerEndsAtTheDeadline) {
  ScriptedServer silent([](WirePeer* peer, int) { (void)peer->WaitClosed(); });
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(RpcChannel::Open(silent.socket_address(), milliseconds(100)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_LE(Clock::System().Now() - start, milliseconds(1000));
}

TEST(RpcChannelOpenTest, AGreetingThatDripsEndsAtTheDeadline) {
  ScriptedServer drips([](WirePeer* peer, int) {
    const wire::HelloBody hello;
    Drip(peer, HelloAnswer(peer, hello, WireStatus::kOk));  // 320 ms and more
  });
  EXPECT_EQ(RpcChannel::Open(drips.socket_address(), milliseconds(100)).status().code(),
            StatusCode::kDeadlineExceeded);
}

TEST(RpcChannelOpenTest, APeerThatSpeaksSomethingElseIsAnError) {
  ScriptedServer http([](WirePeer* peer, int) {
    (void)peer->Send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    (void)peer->WaitClosed();
  });
  const Status status = RpcChannel::Open(http.socket_address(), seconds(5)).status();
  EXPECT_TRUE(status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnavailable)
      << status;
}

TEST(RpcChannelOpenTest, AGreetingThatIsRefusedSaysWhy) {
  ScriptedServer refuses([](WirePeer* peer, int) {
    const auto hello = testing::ReadRequest(peer);
    if (hello) (void)peer->Send(AnswerTo(hello->header, "full", WireStatus::kRetryLater));
  });
  auto channel = RpcChannel::StartOpen(*ParseAddress(refuses.address()), 0);
  ASSERT_TRUE(channel.ok());
  RpcChannel* const one = channel->get();
  Status result;
  RunAll(std::span(&one, 1), Deadline::After(seconds(10)), std::span(&result, 1));
  EXPECT_TRUE(result.ok()) << result;
  EXPECT_EQ(one->Greeted().code(), StatusCode::kResourceExhausted);
}

class NoValues final : public AnswerSink {
 public:
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}
};

// What is done meanwhile may take longer than a greeting may; the request that follows the greeting
// has the time that is left.
TEST(RpcChannelOpenTest, AGreetingThatCameInTimeCountsHoweverLateItIsLookedAt) {
  MemoryServer server;
  auto channel = RpcChannel::StartOpen(*ParseAddress(server.address()), 0);
  ASSERT_TRUE(channel.ok());
  RpcChannel* const one = channel->get();
  one->set_until(Clock::System().Now());
  NoValues sink;
  int requests = 0;
  Status result;
  RunAll(
      std::span(&one, 1), Deadline::After(seconds(10)), std::span(&result, 1),
      [&] {
        EXPECT_TRUE(testing::Eventually([&] { return server.store.counts().handled == 1; }));
        return false;
      },
      [&](size_t) {
        if (++requests > 1) return;
        one->NewRequest().header.op = wire::Op::kPing;
        one->Start(&sink);
      });
  EXPECT_TRUE(result.ok()) << result;
  EXPECT_EQ(requests, 2);
}

TEST(RpcChannelOpenTest, AGreetingHasItsOwnTime) {
  ScriptedServer silent([](WirePeer* peer, int) { (void)peer->WaitClosed(); });
  auto channel = RpcChannel::StartOpen(silent.socket_address(), 0);
  ASSERT_TRUE(channel.ok());
  RpcChannel* const one = channel->get();
  one->set_until(Clock::System().Now() + milliseconds(50));
  Status result;
  const TimePoint start = Clock::System().Now();
  RunAll(std::span(&one, 1), Deadline::After(seconds(20)), std::span(&result, 1));
  EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded) << result;
  EXPECT_LE(Clock::System().Now() - start, seconds(5));
  channel->reset();
}

}  // namespace
}  // namespace ems::fabric
