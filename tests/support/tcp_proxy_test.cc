// What must hold: each fault of the proxy is what its name says, in its own direction alone, and is
// over when the proxy is mended.
#include "tests/support/tcp_proxy.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <bit>

#include "common/check.h"
#include "tests/support/eventually.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {
namespace {

using std::chrono::milliseconds;

// Long enough for bytes that are on their way over loopback, short enough to wait in vain for.
constexpr Duration kQuiet = milliseconds(100);

class TcpProxyTest : public ::testing::Test {
 protected:
  TcpProxyTest() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(own);
    auto* raw = reinterpret_cast<sockaddr*>(&own);
    EMS_CHECK(::bind(listener_.get(), raw, length) == 0 && ::listen(listener_.get(), 16) == 0);
    EMS_CHECK(::getsockname(listener_.get(), raw, &length) == 0);
    proxy_.SetTarget("127.0.0.1:" + std::to_string(ntohs(own.sin_port)));
  }
  struct Pair {
    WirePeer client;
    WirePeer target;
  };
  // A connection through the proxy, both ends.
  Pair Connect() {
    WirePeer client = WirePeer::Connect(proxy_.address());
    EXPECT_TRUE(client.connected());
    pollfd entry{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    EXPECT_GT(::poll(&entry, 1, 5000), 0) << "the proxy has not connected to its target";
    return {std::move(client), WirePeer(fabric::Fd(::accept(listener_.get(), nullptr, nullptr)))};
  }
  // Whether bytes pass in both directions.
  static bool Speaks(Pair* pair) {
    return pair->client.Send("question") && pair->target.Receive(8) == "question" &&
           pair->target.Send("answer") && pair->client.Receive(6) == "answer";
  }

  fabric::Fd listener_;
  TcpProxy proxy_;
};

TEST_F(TcpProxyTest, PassesAllBytesOnInBothDirectionsAndTheEnd) {
  Pair pair = Connect();
  EXPECT_TRUE(Speaks(&pair));
  const std::string large(4 * kMiB, 'x');
  Thread sender("sender", [&] { EXPECT_TRUE(pair.client.Send(large)); });
  EXPECT_EQ(pair.target.Receive(large.size()), large);
  sender.Join();
  pair.client.Close();
  EXPECT_TRUE(pair.target.WaitClosed());
}

TEST_F(TcpProxyTest, CutEndsWhatIsThereAndRefusesWhatComesUntilMended) {
  Pair pair = Connect();
  proxy_.Cut();
  EXPECT_TRUE(pair.client.WaitClosed());
  EXPECT_TRUE(pair.target.WaitClosed());
  WirePeer late = WirePeer::Connect(proxy_.address());
  EXPECT_TRUE(late.WaitClosed());
  proxy_.Mend();
  Pair mended = Connect();
  EXPECT_TRUE(Speaks(&mended));
}

TEST_F(TcpProxyTest, DelayHoldsEachByteOfItsDirectionBack) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.delay = milliseconds(200)});
  const TimePoint start = Clock::System().Now();
  ASSERT_TRUE(pair.client.Send("late"));
  ASSERT_TRUE(pair.target.Send("soon"));
  EXPECT_EQ(pair.client.Receive(4), "soon");
  EXPECT_LT(Clock::System().Now() - start, milliseconds(200));
  EXPECT_EQ(pair.target.Receive(4), "late");
  EXPECT_GE(Clock::System().Now() - start, milliseconds(200));
}

TEST_F(TcpProxyTest, AStallFillsTheSendersWindowAndLosesNothing) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.carry = Carry::kStall});
  const std::string large(64 * kMiB, 'x');
  EXPECT_FALSE(pair.client.Send(large, kQuiet)) << "the other end reads it";
  EXPECT_EQ(pair.target.Receive(1, kQuiet), std::nullopt);
  proxy_.Mend();
  EXPECT_EQ(pair.target.Receive(kMiB), large.substr(0, kMiB));
}

TEST_F(TcpProxyTest, WhatIsSwallowedHasArrivedForItsSenderAlone) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.carry = Carry::kSwallow});
  EXPECT_TRUE(pair.client.Send(std::string(16 * kMiB, 'x')));
  EXPECT_EQ(pair.target.Receive(1, kQuiet), std::nullopt);
  ASSERT_TRUE(pair.target.Send("answer"));
  EXPECT_EQ(pair.client.Receive(6), "answer");
}

TEST_F(TcpProxyTest, AVanishedSendersPacketsAreNotAcknowledged) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.carry = Carry::kVanish});
  ASSERT_TRUE(pair.client.Send("unheard"));
  const auto unacknowledged = [&] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(pair.client.fd(), TIOCOUTQ, &bytes), 0);
    return bytes;
  };
  EXPECT_EQ(pair.target.Receive(1, kQuiet), std::nullopt);
  EXPECT_EQ(unacknowledged(), 7);
  // Towards the client packets still come, and new connections do not begin.
  ASSERT_TRUE(pair.target.Send("answer"));
  EXPECT_EQ(pair.client.Receive(6), "answer");
  EXPECT_EQ(fabric::Connect(*fabric::ParseAddress(proxy_.address()), kQuiet).status().code(),
            StatusCode::kDeadlineExceeded);
  proxy_.Mend();
  EXPECT_EQ(pair.target.Receive(7), "unheard");
}

TEST_F(TcpProxyTest, WhereLargePacketsAreLostSmallOnesArrive) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.carry = Carry::kLoseLarge});
  EXPECT_TRUE(Speaks(&pair));
  const std::string large(8 * kKiB, 'x');
  ASSERT_TRUE(pair.client.Send(large));
  EXPECT_EQ(pair.target.Receive(1, kQuiet), std::nullopt);
  proxy_.Mend();
  EXPECT_EQ(pair.target.Receive(large.size()), large) << "the kernel sends it again";
}

TEST_F(TcpProxyTest, AResetComesInsteadOfItsByteAndOnce) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.reset_at = 3});
  ASSERT_TRUE(pair.client.Send("abcdef"));
  EXPECT_EQ(pair.target.Receive(3), "abc");
  for (WirePeer* end : {&pair.client, &pair.target}) {
    ASSERT_TRUE(end->WaitClosed());
    EXPECT_EQ(end->last_error(), ECONNRESET);
  }
  EXPECT_EQ(proxy_.strikes(), 1u);
  Pair next = Connect();
  EXPECT_TRUE(Speaks(&next));
}

TEST_F(TcpProxyTest, AFlipDamagesItsByteAndOnce) {
  Pair pair = Connect();
  ASSERT_TRUE(Speaks(&pair));
  proxy_.Set(Way::kToClient, {.flip_at = 2});  // counted from now on
  EXPECT_EQ(proxy_.strikes(), 0u);
  ASSERT_TRUE(pair.target.Send("aaaa"));
  EXPECT_EQ(pair.client.Receive(4), "aa`a");
  EXPECT_EQ(proxy_.strikes(), 1u);
  EXPECT_TRUE(Speaks(&pair));
}

TEST_F(TcpProxyTest, ADripPassesOneByteOnAtATime) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.drip = milliseconds(20)});
  const TimePoint start = Clock::System().Now();
  ASSERT_TRUE(pair.client.Send("0123456789"));
  EXPECT_EQ(pair.target.Receive(10), "0123456789");
  EXPECT_GE(Clock::System().Now() - start, 9 * milliseconds(20));
}

TEST_F(TcpProxyTest, ALaterConnectionOvertakesTheOneBeforeIt) {
  proxy_.Set(Way::kToTarget, {.later_first = true});
  Pair first = Connect();
  Pair second = Connect();
  ASSERT_TRUE(first.client.Send("old"));
  EXPECT_EQ(first.target.Receive(1, kQuiet), std::nullopt);
  ASSERT_TRUE(second.client.Send("new"));
  EXPECT_EQ(second.target.Receive(3), "new");
  EXPECT_EQ(first.target.Receive(3), "old");
}

// The counts say how many pieces there were: none is longer than kPieceBytesMax.
TEST_F(TcpProxyTest, ANoisyLinkFlipsOneBitOfEachPiece) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.noise = {.flip = 1}});
  const std::string sent(10'000, 'x');
  ASSERT_TRUE(pair.client.Send(sent));
  const std::optional<std::string> got = pair.target.Receive(sent.size());
  ASSERT_TRUE(got);
  uint64_t flipped = 0;
  for (size_t i = 0; i < sent.size(); ++i)
    flipped += static_cast<uint64_t>(std::popcount(static_cast<uint8_t>((*got)[i] ^ sent[i])));
  const LinkCounts counts = proxy_.counts().ways[0];
  EXPECT_GE(flipped, sent.size() / kPieceBytesMax);
  EXPECT_EQ(counts.flips, flipped);
  EXPECT_EQ(counts.bytes, sent.size());
  ASSERT_TRUE(pair.target.Send("answer"));
  EXPECT_EQ(pair.client.Receive(6), "answer") << "the other direction";
  proxy_.Mend();
  EXPECT_TRUE(Speaks(&pair));
}

TEST_F(TcpProxyTest, ADroppedPieceIsAHoleInTheStream) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.noise = {.drop = 1}});
  ASSERT_TRUE(pair.client.Send("lost"));
  ASSERT_TRUE(Eventually([&] { return proxy_.counts().ways[0].drops == 1; }));
  proxy_.Mend();
  ASSERT_TRUE(pair.client.Send("kept"));
  EXPECT_EQ(pair.target.Receive(4), "kept");
}

TEST_F(TcpProxyTest, ADuplicatedPieceComesTwice) {
  Pair pair = Connect();
  proxy_.Set(Way::kToClient, {.noise = {.duplicate = 1}});
  ASSERT_TRUE(pair.target.Send("twice"));
  EXPECT_EQ(pair.client.Receive(10), "twicetwice");
}

TEST_F(TcpProxyTest, APieceIsOvertakenByTheNextOneOrComesLate) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.noise = {.reorder = 1}});
  const std::string first(kPieceBytesMax, 'a');
  ASSERT_TRUE(pair.client.Send(first + "b"));
  const std::optional<std::string> got = pair.target.Receive(first.size() + 1);
  EXPECT_EQ(got, "b" + first);
  ASSERT_TRUE(pair.client.Send("alone"));
  EXPECT_EQ(pair.target.Receive(5), "alone");
  EXPECT_EQ(proxy_.counts().ways[0].reorders, 2U);
}

TEST_F(TcpProxyTest, AResetComesInsteadOfAPiece) {
  Pair pair = Connect();
  proxy_.Set(Way::kToTarget, {.noise = {.reset = 1}});
  ASSERT_TRUE(pair.client.Send("never"));
  EXPECT_EQ(pair.target.ReceiveAll(), "");
  EXPECT_EQ(pair.target.last_error(), ECONNRESET);
  EXPECT_EQ(proxy_.counts().ways[0].resets, 1U);
}

TEST_F(TcpProxyTest, TheSameSeedMakesTheSameChoices) {
  const auto damaged = [&](uint64_t seed) {
    TcpProxy proxy;  // choices are those of its first connection
    sockaddr_in target{};
    socklen_t length = sizeof(target);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&target), &length), 0);
    proxy.SetTarget("127.0.0.1:" + std::to_string(ntohs(target.sin_port)));
    proxy.Set(Way::kToTarget, {.noise = {.flip = 0.5, .seed = seed}});
    WirePeer client = WirePeer::Connect(proxy.address());
    pollfd entry{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    EXPECT_GT(::poll(&entry, 1, 5000), 0);
    WirePeer end(fabric::Fd(::accept(listener_.get(), nullptr, nullptr)));
    std::string all;
    for (int i = 0; i < 20; ++i) {  // each is a piece: the next one begins when it has arrived
      EXPECT_TRUE(client.Send("piece"));
      all += end.Receive(5).value_or("");
    }
    return all;
  };
  const std::string once = damaged(7);
  EXPECT_EQ(damaged(7), once);
  EXPECT_NE(damaged(8), once);
}

}  // namespace
}  // namespace ems::testing
