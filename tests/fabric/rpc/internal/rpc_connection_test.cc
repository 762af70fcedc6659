// What must hold: whatever bytes come and whenever they stop, the server lives, the session is told
// once how each Put ended, and nothing half-received is ever stored.
#include "fabric/rpc/internal/rpc_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "fabric/net/busy_poll.h"
#include "fabric/rpc/rpc_server.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/socket_pair.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::KeyFrame;
using testing::MakeFrame;
using testing::MakeHeader;
using testing::MakeValue;
using testing::MemoryServer;
using testing::MultiFrame;
using testing::PutFrame;
using testing::ReadReply;
using testing::WirePeer;
using testing::WireReply;
using wire::Op;
using wire::WireStatus;

std::optional<WireReply> Ask(WirePeer* peer, std::string_view frame) {
  if (!peer->Send(frame)) return std::nullopt;
  return ReadReply(peer);
}

// The server still serves a new connection.
bool Serves(const std::string& address) {
  WirePeer peer = WirePeer::Connect(address);
  return peer.connected() && Ask(&peer, KeyFrame(Op::kPing, 9, "")).has_value();
}

bool AllGone(MemoryServer* server) {
  return Eventually([&] { return server->store.counts().live_sessions.load() == 0; });
}

TEST(RpcConnectionTest, UnknownOpIsUnimplementedAndTheConnectionStays) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  std::optional<WireReply> answer =
      Ask(&peer, MakeFrame(MakeHeader(static_cast<Op>(77), 5), "some key", std::string(5000, 'b')));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, WireStatus::kUnimplemented);
  EXPECT_EQ(answer->header.request_id, 5U);
  EXPECT_EQ(static_cast<int>(answer->header.op), 77);
  answer = Ask(&peer, PutFrame(6, "k", "v"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, WireStatus::kOk);
}

TEST(RpcConnectionTest, AnotherVersionIsToldTheRange) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  wire::FrameHeader header = MakeHeader(Op::kPing, 5);
  header.version = 9;
  std::optional<WireReply> answer = Ask(&peer, MakeFrame(header, "", ""));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, WireStatus::kVersion);
  EXPECT_EQ(answer->header.request_id, 5U);
  EXPECT_FALSE(answer->body.empty());
  EXPECT_TRUE(Serves(server.address()));
}

TEST(RpcConnectionTest, NotAFrameClosesTheConnection) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  std::string frame = PutFrame(1, "k", "v");
  frame[0] = 'X';
  ASSERT_TRUE(peer.Send(frame));
  EXPECT_TRUE(peer.WaitClosed());
  EXPECT_EQ(server.metrics.bad_frames.value(), 1);
  EXPECT_EQ(server.store.counts().begun, 0);
}

TEST(RpcConnectionTest, ADamagedHeaderClosesTheConnection) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  std::string frame = PutFrame(1, "k", "v");
  frame[40] ^= 1;  // body_bytes
  ASSERT_TRUE(peer.Send(frame));
  EXPECT_TRUE(peer.WaitClosed());
  EXPECT_EQ(server.store.counts().begun, 0);
}

TEST(RpcConnectionTest, HttpIsToldThatThisIsNotHttp) {
  MemoryServer server;
  for (const std::string_view request :
       {std::string_view("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string_view("GET / HTTP/1.0\r\n\r\n"),
        std::string_view("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                         "2\r\nUser-Agent: something long\r\n\r\n{}")}) {
    WirePeer peer = WirePeer::Connect(server.address());
    ASSERT_TRUE(peer.Send(request));
    std::optional<std::string> answer = peer.ReceiveAll();
    ASSERT_TRUE(answer);
    EXPECT_THAT(*answer, ::testing::StartsWith("HTTP/1.1 400")) << request;
  }
}

TEST(RpcConnectionTest, TooLargeValuesAreAnsweredBeforeAnyIsAllocated) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.value_bytes_max = 1000;
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  std::optional<WireReply> answer = Ask(&peer, PutFrame(3, "k", std::string(1001, 'v')));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, WireStatus::kTooLarge);
  EXPECT_EQ(answer->header.request_id, 3U);
  EXPECT_EQ(server.store.counts().begun, 0);
  for (const uint64_t length : {uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    WirePeer liar = WirePeer::Connect(server.address());
    wire::FrameHeader header = MakeHeader(Op::kPut, 4);
    header.key_bytes = 1;
    header.body_bytes = length;
    wire::Seal(&header);
    answer = Ask(&liar, std::string(AsText(wire::RawBytes(header))) + "k");
    ASSERT_TRUE(answer) << length;
    EXPECT_EQ(answer->header.status, WireStatus::kTooLarge) << length;
    EXPECT_TRUE(liar.WaitClosed());
  }
}

TEST(RpcConnectionTest, LengthsAgainstTheRulesAreInvalid) {
  MemoryServer server;
  for (const std::string& frame :
       {KeyFrame(Op::kGet, 1, ""), KeyFrame(Op::kGet, 1, std::string(513, 'k')),
        MultiFrame(Op::kMultiGet, 1, {}), MultiFrame(Op::kMultiGet, 1, {"a", ""}),
        MultiFrame(Op::kMultiGet, 1, {std::string(513, 'k')}),
        MakeFrame(MakeHeader(Op::kHello, 1), "", "x")}) {
    WirePeer peer = WirePeer::Connect(server.address());
    std::optional<WireReply> answer = Ask(&peer, frame);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.status, WireStatus::kInvalid);
  }
  EXPECT_TRUE(Serves(server.address()));
}

// One byte at a time, each well inside any read's own patience: the header as a whole has a limit.
TEST(RpcConnectionTest, AHeaderThatTricklesIsCutAtItsTimeout) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.header_timeout = milliseconds(100);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string frame = KeyFrame(Op::kGet, 1, "key");
  const TimePoint start = Clock::System().Now();
  bool cut = false;
  for (size_t at = 0; at < frame.size() && !cut; ++at) {
    if (!peer.Send(frame.substr(at, 1))) break;
    cut = peer.WaitClosed(milliseconds(20));
  }
  EXPECT_TRUE(cut);
  const Duration took = Clock::System().Now() - start;
  EXPECT_GE(took, milliseconds(80));
  EXPECT_LE(took, milliseconds(1000));
  EXPECT_EQ(server.metrics.timeouts.value(), 1);
  EXPECT_EQ(server.store.counts().handled, 0);
}

TEST(RpcConnectionTest, AKeyThatNeverComesIsCutAtTheHeaderTimeout) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.header_timeout = milliseconds(100);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  ASSERT_TRUE(peer.Send(KeyFrame(Op::kGet, 1, "key").substr(0, wire::kHeaderBytes + 2)));
  EXPECT_TRUE(peer.WaitClosed(seconds(2)));
}

// Its sender has gone, so that what it waits for comes too late whenever it comes.
TEST(RpcConnectionTest, ARequestThatComesAfterItsDeadlineWaitsForNothing) {
  MemoryServer server;
  std::atomic<int> asked{0};
  server.store.gate = [&asked](const wire::FrameHeader&, SlotId) -> Outcome {
    ++asked;
    return {.status = WireStatus::kRetryLater, .wait = milliseconds(1), .patience = seconds(1)};
  };
  wire::FrameHeader late = testing::MakeHeader(Op::kGet, 1);
  late.flags = wire::kFlagUntil;
  late.deadline_ms = wire::ClockMs(Clock::System().Now()) - 5;
  WirePeer peer = WirePeer::Connect(server.address());
  std::optional<WireReply> answer = Ask(&peer, testing::MakeFrame(late, "k", {}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, WireStatus::kRetryLater);
  EXPECT_LE(asked, 3);
}

TEST(RpcConnectionTest, AReaderThatNeverReadsIsCut) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = milliseconds(100);
  MemoryServer server(options);
  server.store.Insert("k", std::string(64 << 20, 'v'));
  WirePeer peer = WirePeer::Connect(server.address());
  ASSERT_TRUE(peer.Send(KeyFrame(Op::kGet, 1, "k")));
  // 0.1 s + 1 s for each 10 MB that the sockets took.
  ASSERT_TRUE(Eventually([&] { return server.store.counts().live_sessions.load() == 1; }));
  EXPECT_TRUE(
      Eventually([&] { return server.store.counts().live_sessions.load() == 0; }, seconds(12)));
  EXPECT_GE(server.store.counts().sent, 1) << "pins must be released";
  EXPECT_EQ(server.metrics.timeouts.value(), 1);
}

// Other transfers of the thread have their turns meanwhile, which is not the peer's fault.
TEST(RpcConnectionTest, AReaderIsNotCutWhileItsAnswerWaitsForATurn) {
  testing::SocketPair pair;
  pair.turns()->OnServed(Clock::System().Now() + std::chrono::hours(1), 1);  // parts need turns
  testing::MemoryStore store;
  store.Insert("k", std::string(1 << 20, 'v'));
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = milliseconds(100);
  const RpcMetrics metrics;
  std::atomic<int> busy{0};
  BusyPoll busy_poll;
  const auto connection = std::make_shared<internal::RpcConnection>(
      pair.TakeSocket(), options, metrics, store.NewSession(), &busy, &busy_poll, pair.turns());
  bool ended = false;
  asio::co_spawn(pair.context(), connection->Run(),
                 [&](const std::exception_ptr&) { ended = true; });
  ASSERT_TRUE(pair.peer().Send(KeyFrame(Op::kGet, 1, "k")));
  // Its answer is made, and waits for the turn that the next handler gives.
  const auto handled = [&] { return store.counts().handled.load() == 1; };
  for (int steps = 0; steps < 1000 && !handled(); ++steps)
    pair.context().run_one_for(milliseconds(10));
  ASSERT_TRUE(handled());
  connection->CheckDeadline(Clock::System().Now() + std::chrono::hours(1));
  std::vector<char> part(1 << 16);
  size_t received = 0;
  for (int steps = 0; steps < 100'000 && received <= 1 << 20 && !ended; ++steps) {
    pair.context().run_one_for(milliseconds(1));
    const ssize_t got = ::recv(pair.peer().fd(), part.data(), part.size(), MSG_DONTWAIT);
    received += static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
  EXPECT_EQ(received, (size_t{1} << 20) + wire::kHeaderBytes);
  connection->CheckDeadline(TimePoint::max());  // it is idle, and ends
  for (int steps = 0; steps < 1000 && !ended; ++steps) pair.context().run_one_for(milliseconds(10));
  EXPECT_TRUE(ended);
}

TEST(RpcConnectionTest, AWriterThatStopsIsCutAndItsPutAborted) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = milliseconds(100);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string frame = PutFrame(1, "k", std::string(1 << 20, 'v'));
  ASSERT_TRUE(peer.Send(std::string_view(frame).substr(0, frame.size() - 1)));
  EXPECT_TRUE(peer.WaitClosed(seconds(3)));
  EXPECT_TRUE(AllGone(&server));
  EXPECT_EQ(server.store.counts().aborted, 1);
  EXPECT_EQ(server.store.size(), 0U);
}

// What it has announced gives it no time: 64 MiB would have had 6.7 s.
TEST(RpcConnectionTest, AWriterThatDripsHasTimeForWhatHasComeAlone) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = milliseconds(200);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string frame = PutFrame(1, "k", std::string(64 << 20, 'v'));
  ASSERT_TRUE(peer.Send(std::string_view(frame).substr(0, 100'000)));
  const TimePoint start = Clock::System().Now();
  for (size_t at = 100'000; !peer.WaitClosed(milliseconds(5)); ++at) {
    if (!peer.Send(frame.substr(at, 1))) break;
    ASSERT_LT(Clock::System().Now() - start, seconds(4));
  }
  EXPECT_TRUE(AllGone(&server));
  EXPECT_EQ(server.store.counts().aborted, 1);
  EXPECT_EQ(server.metrics.slow_puts.value(), 1);
}

// Longer than transfer_timeout, but never slower than it may be.
TEST(RpcConnectionTest, AWriterThatIsAsFastAsItMustBeIsNotCut) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = seconds(1);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string value(48 << 20, 'v');
  const std::string frame = PutFrame(1, "k", value);
  const TimePoint start = Clock::System().Now();
  for (size_t at = 0; at < frame.size(); at += 1 << 20) {
    EXPECT_FALSE(peer.WaitClosed(milliseconds(30))) << at;
    ASSERT_TRUE(peer.Send(std::string_view(frame).substr(at, 1 << 20))) << at;
  }
  std::optional<WireReply> put = ReadReply(&peer);
  EXPECT_GE(Clock::System().Now() - start, seconds(1)) << "it shows nothing";
  ASSERT_TRUE(put);
  EXPECT_EQ(put->header.status, WireStatus::kOk);
}

TEST(RpcConnectionTest, APutThatBreaksAtAnyByteStoresNothing) {
  MemoryServer server;
  const std::string frame = PutFrame(1, "key", "value of a few bytes");
  for (size_t cut = 0; cut < frame.size(); ++cut) {
    for (const bool reset : {true, false}) {
      WirePeer peer = WirePeer::Connect(server.address());
      ASSERT_TRUE(peer.connected());
      ASSERT_TRUE(peer.Send(std::string_view(frame).substr(0, cut)));
      if (reset) {
        peer.Reset();
      } else {
        peer.Close();
      }
    }
  }
  EXPECT_TRUE(AllGone(&server));
  const auto& counts = server.store.counts();
  EXPECT_EQ(server.store.size(), 0U);
  EXPECT_EQ(counts.ended, 0);
  EXPECT_EQ(counts.begun, counts.aborted.load());
  EXPECT_EQ(counts.violations, 0);
  EXPECT_TRUE(Serves(server.address()));
}

TEST(RpcConnectionTest, AMultiPutThatBreaksAtAnyByteStoresWholeItemsOnly) {
  MemoryServer server;
  const std::vector<std::string> values = {"first value", "second value"};
  const std::string frame = MultiFrame(Op::kMultiPut, 1, {"a", "b"}, values);
  for (size_t cut = 0; cut < frame.size(); ++cut) {
    WirePeer peer = WirePeer::Connect(server.address());
    ASSERT_TRUE(peer.Send(std::string_view(frame).substr(0, cut)));
    peer.Close();
  }
  EXPECT_TRUE(AllGone(&server));
  const auto& counts = server.store.counts();
  EXPECT_EQ(counts.begun, counts.aborted + counts.ended);
  EXPECT_EQ(counts.violations, 0);
  EXPECT_EQ(server.store.Find("b"), nullptr);
  if (auto a = server.store.Find("a")) {
    EXPECT_EQ(*a, values[0]);
  }
}

TEST(RpcConnectionTest, AReaderThatLeavesAtAnyByteHarmsNobody) {
  MemoryServer server;
  const std::string value = MakeValue("ns", "k", 1, 100);
  server.store.Insert("k", value);
  for (size_t read = 0; read <= wire::kHeaderBytes + value.size(); ++read) {
    WirePeer peer = WirePeer::Connect(server.address());
    ASSERT_TRUE(peer.Send(KeyFrame(Op::kGet, 1, "k")));
    ASSERT_TRUE(peer.Receive(read).has_value()) << read;
    peer.Reset();
  }
  EXPECT_TRUE(AllGone(&server));
  EXPECT_EQ(server.store.counts().violations, 0);
  EXPECT_TRUE(Serves(server.address()));
}

TEST(RpcConnectionTest, AReaderThatLeavesALargeAnswerReleasesItsPins) {
  MemoryServer server;
  server.store.Insert("k", std::string(64 << 20, 'v'));
  for (const size_t read : {size_t{0}, size_t{64}, size_t{1} << 20}) {
    WirePeer peer = WirePeer::Connect(server.address());
    ASSERT_TRUE(peer.Send(KeyFrame(Op::kGet, 1, "k")));
    ASSERT_TRUE(peer.Receive(read).has_value());
    ASSERT_TRUE(Eventually([&] { return server.store.counts().handled.load() >= 1; }));
    peer.Reset();
  }
  EXPECT_TRUE(AllGone(&server));
  EXPECT_EQ(server.store.Find("k").use_count(), 2) << "the map's and this one";
}

// The client says all it has to say and closes its sending half: it still gets its answers.
TEST(RpcConnectionTest, AHalfClosedPeerGetsItsAnswer) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  ASSERT_TRUE(peer.Send(PutFrame(1, "k", "v") + KeyFrame(Op::kGet, 2, "k")));
  peer.HalfClose();
  EXPECT_TRUE(ReadReply(&peer));
  std::optional<WireReply> get = ReadReply(&peer);
  ASSERT_TRUE(get);
  EXPECT_EQ(get->body, "v");
  EXPECT_TRUE(peer.WaitClosed());
}

TEST(RpcConnectionTest, FramesSplitAtEachByteAreUnderstood) {
  MemoryServer server;
  const std::string frame = PutFrame(1, "key", "some value");
  WirePeer peer = WirePeer::Connect(server.address());
  for (size_t cut = 1; cut < frame.size(); ++cut) {
    const size_t handled_before = static_cast<size_t>(server.metrics.bytes_received.value());
    ASSERT_TRUE(peer.Send(std::string_view(frame).substr(0, cut)));
    (void)peer.WaitClosed(milliseconds(1));  // the server sees the first part by itself
    ASSERT_TRUE(peer.Send(std::string_view(frame).substr(cut)));
    std::optional<WireReply> put = ReadReply(&peer);
    ASSERT_TRUE(put) << cut;
    EXPECT_EQ(put->header.status, WireStatus::kOk) << cut;
    EXPECT_GE(static_cast<size_t>(server.metrics.bytes_received.value()), handled_before);
  }
}

// A frame of each kind that a client sends.
std::vector<std::string> EachKind() {
  const std::vector<std::string> keys = {"old", "new"};
  std::string staged(AsText(
      wire::RawBytes(wire::StagedValue{.session = 1, .secret = 2, .offset = 0, .bytes = 4})));
  wire::FrameHeader many = MakeHeader(Op::kMultiPutStaged, 1);
  many.item_count = 2;
  wire::FrameHeader ranges = MakeHeader(Op::kMultiGetRange, 1);
  ranges.item_count = 2;
  std::string put_heads, get_heads;
  for (int i = 0; i < 2; ++i) {
    wire::ItemHead head;
    head.key_bytes = 3;
    testing::AppendRaw(&get_heads, wire::RawBytes(head));
    head.value_bytes = 4;
    testing::AppendRaw(&put_heads, wire::RawBytes(head));
  }
  const wire::RangeBody range{.offset = 1, .length = 2};
  const std::string two_ranges =
      std::string(AsText(wire::RawBytes(range))) + std::string(AsText(wire::RawBytes(range)));
  const wire::HelloBody hello;
  return {MakeFrame(MakeHeader(Op::kHello, 1), "", AsText(wire::RawBytes(hello))),
          KeyFrame(Op::kPing, 1, ""),
          KeyFrame(Op::kPeers, 1, ""),
          MakeFrame(MakeHeader(Op::kScan, 1), "", AsText(wire::RawBytes(wire::ScanBody()))),
          KeyFrame(Op::kStats, 1, ""),
          PutFrame(1, "new", "a value"),
          PutFrame(1, "old", "another", wire::kFlagOverwrite),
          KeyFrame(Op::kGet, 1, "old"),
          testing::RangeFrame(1, "old", 1, 3),
          KeyFrame(Op::kExists, 1, "old"),
          KeyFrame(Op::kRemove, 1, "old"),
          MultiFrame(Op::kMultiPut, 1, {"new", "nox"}, {"1", "22"}),
          MultiFrame(Op::kMultiGet, 1, keys),
          MultiFrame(Op::kMultiExists, 1, keys),
          MultiFrame(Op::kMultiRemove, 1, keys),
          MakeFrame(MakeHeader(Op::kAttach, 1), "", "a token"),
          MakeFrame(MakeHeader(Op::kPutStaged, 1), "new", staged),
          MakeFrame(many, "", put_heads + "newnox" + staged + staged),
          MakeFrame(ranges, "", get_heads + "oldnew" + two_ranges)};
}

// One in a value of several costs that item alone, any other one the request. No session hears of
// it, and the connection goes on unless the header is damaged.
TEST(RpcConnectionTest, EachFlippedBitOfARequestIsRefusedBeforeAnythingIsDone) {
  MemoryServer server;
  server.store.staged = "0123456789";
  server.store.Insert("old", "content");
  const auto& counts = server.store.counts();
  WirePeer peer = WirePeer::Connect(server.address());
  for (const std::string& frame : EachKind()) {
    const Op op = testing::HeaderOf(frame).op;
    SCOPED_TRACE(wire::OpName(op));
    const size_t table = wire::CoveredBytes(testing::HeaderOf(frame));
    const size_t values_at = wire::kHeaderBytes + testing::HeaderOf(frame).key_bytes + table;
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      const int handled = counts.handled.load();
      const std::string damaged = testing::WithFlippedBit(frame, bit);
      if (bit < wire::kHeaderBytes * 8) {
        if (bit % 7 != 0) continue;  // proto/data_plane_test has all of them
        WirePeer broken = WirePeer::Connect(server.address());
        ASSERT_TRUE(broken.Send(damaged));
        ASSERT_EQ(broken.ReceiveAll(), "") << bit;
      } else {
        std::optional<WireReply> answer = Ask(&peer, damaged);
        ASSERT_TRUE(answer) << bit;
        const bool of_item = op == Op::kMultiPut && bit / 8 >= values_at;
        ASSERT_EQ(answer->header.status, of_item ? WireStatus::kOk : WireStatus::kChecksumMismatch)
            << bit;
        if (of_item) {
          const size_t item = bit / 8 < values_at + 1 + wire::kTrailerBytes ? 0 : 1;
          EXPECT_EQ(answer->item(item).status, WireStatus::kChecksumMismatch) << bit;
          EXPECT_EQ(server.store.Find(item == 0 ? "new" : "nox"), nullptr);
          server.store.Erase(item == 0 ? "nox" : "new");
        }
      }
      ASSERT_EQ(counts.handled.load(), handled) << bit;
      ASSERT_EQ(server.store.size(), 1U) << bit;
      ASSERT_EQ(*server.store.Find("old"), "content") << bit;
    }
  }
  EXPECT_EQ(counts.violations, 0);
  EXPECT_EQ(server.store.taken_over, -1);
}

// A count and lengths that are sealed, but do not agree.
TEST(RpcConnectionTest, ATableOfAnotherLengthThanItsHeadsSayIsInvalid) {
  MemoryServer server;
  for (const int off : {-1, 1}) {
    const std::string frame = MultiFrame(Op::kMultiPut, 1, {"key", "kez"}, {"1", "22"});
    wire::FrameHeader header = testing::HeaderOf(frame);
    header.table_bytes += static_cast<uint32_t>(off);
    header.checksum = Hash64(AsBytes(frame).subspan(wire::kHeaderBytes, header.table_bytes));
    wire::Seal(&header);
    WirePeer peer = WirePeer::Connect(server.address());
    std::optional<WireReply> answer =
        Ask(&peer, std::string(AsText(wire::RawBytes(header))) + frame.substr(wire::kHeaderBytes));
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.status, WireStatus::kInvalid);
    EXPECT_EQ(server.store.size(), 0U);
  }
}

TEST(RpcConnectionTest, RandomBytesOnTwoThousandConnections) {
  MemoryServer server;
  server.store.Insert("k", "content");
  const uint64_t seed = 20240611;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const std::vector<std::string> frames = {
      PutFrame(1, "key", std::string(200, 'v')), KeyFrame(Op::kGet, 2, "k"),
      MultiFrame(Op::kMultiPut, 3, {"a", "b"}, {"1", std::string(99, '2')}),
      MultiFrame(Op::kMultiGet, 4, {"k", "a"}), testing::RangeFrame(5, "k", 1, 3)};
  for (int i = 0; i < 2000; ++i) {
    WirePeer peer = WirePeer::Connect(server.address());
    ASSERT_TRUE(peer.connected()) << i;
    std::string bytes;
    if (i % 2 == 0) {
      bytes.resize(random() % 300);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {  // a good frame, damaged anywhere, with a header that is sealed again half of the time
      bytes = frames[random() % frames.size()];
      for (int flips = 0; flips < 3; ++flips)
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
      if (random() % 2 == 0) {
        auto header = wire::ReadRaw<wire::FrameHeader>(AsBytes(bytes));
        // Half of these with a checksum that their key and table have, as far as they are there.
        const uint64_t rest = bytes.size() - wire::kHeaderBytes;
        const uint64_t covered = header.key_bytes + wire::CoveredBytes(header);
        if (random() % 2 == 0 && covered <= rest)
          header.checksum = Hash64(AsBytes(bytes).subspan(wire::kHeaderBytes, covered));
        wire::Seal(&header);
        bytes.replace(0, wire::kHeaderBytes, AsText(wire::RawBytes(header)));
      }
    }
    (void)peer.Send(bytes);
    if (i % 3 == 0) peer.Reset();
  }
  EXPECT_TRUE(AllGone(&server));
  EXPECT_EQ(server.store.counts().violations, 0);
  EXPECT_EQ(server.store.counts().begun,
            server.store.counts().ended + server.store.counts().aborted);
  EXPECT_TRUE(Serves(server.address()));
}

}  // namespace
}  // namespace ems::fabric
