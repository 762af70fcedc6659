// What must hold: what is put comes back byte for byte, whatever its size; odd requests are
// answered; sockets are taken and given back as documented.
#include "fabric/rpc/rpc_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "common/thread_pool.h"
#include "tests/support/connect_from.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Eventually;
using testing::KeyFrame;
using testing::MakeValue;
using testing::MemoryServer;
using testing::MultiFrame;
using testing::PutFrame;
using testing::RangeFrame;
using testing::ReadReply;
using testing::WirePeer;
using testing::WireReply;
using wire::Op;
using wire::WireStatus;

// Sends one frame and reads its answer.
std::optional<WireReply> Ask(WirePeer* peer, std::string_view frame) {
  if (!peer->Send(frame)) return std::nullopt;
  return ReadReply(peer);
}

wire::StagedValue StagedAt(uint64_t offset, uint64_t bytes) {
  return {.session = 1, .secret = 2, .offset = offset, .bytes = bytes};
}

std::string StagedFrame(uint32_t id, std::string_view key, const wire::StagedValue& staged) {
  return testing::MakeFrame(testing::MakeHeader(Op::kPutStaged, id), key,
                            AsText(wire::RawBytes(staged)));
}

TEST(RpcServerTest, StagedValuesAreCopiedFromWhereTheyLie) {
  MemoryServer server;
  constexpr uint64_t kLarge = 9 * kMiB + 5;  // several steps, and a piece that is not whole
  server.store.staged = MakeValue("ns", "large", 1, kLarge) + "small";
  WirePeer peer = WirePeer::Connect(server.address());
  for (const auto& [key, staged] : {std::pair{"large", StagedAt(0, kLarge)},
                                    {"small", StagedAt(kLarge, 5)},
                                    {"empty", StagedAt(kLarge + 5, 0)}}) {
    const auto put = Ask(&peer, StagedFrame(1, key, staged));
    ASSERT_TRUE(put) << key;
    EXPECT_EQ(put->header.status, WireStatus::kOk) << key;
    EXPECT_EQ(*server.store.Find(key), server.store.staged.substr(staged.offset, staged.bytes));
  }
  EXPECT_EQ(server.store.counts().violations, 0);
}

TEST(RpcServerTest, AStagedValueThatIsNotThereIsRefusedAndTheConnectionGoesOn) {
  MemoryServer server;
  server.store.staged = "0123456789";
  WirePeer peer = WirePeer::Connect(server.address());
  wire::StagedValue stranger = StagedAt(0, 5);
  stranger.secret = 3;
  for (const wire::StagedValue& staged : {stranger, StagedAt(6, 5), StagedAt(UINT64_MAX, 5)}) {
    const auto put = Ask(&peer, StagedFrame(1, "key", staged));
    ASSERT_TRUE(put);
    EXPECT_EQ(put->header.status, WireStatus::kInvalid);
  }
  EXPECT_EQ(Ask(&peer, StagedFrame(1, "key", StagedAt(0, uint64_t{1} << 40)))->header.status,
            WireStatus::kTooLarge);
  EXPECT_EQ(Ask(&peer, StagedFrame(2, "key", StagedAt(5, 5)))->header.status, WireStatus::kOk);
  EXPECT_EQ(*server.store.Find("key"), "56789");
  EXPECT_EQ(server.store.counts().violations, 0);
}

// The sender copies its value in while the server copies it out.
TEST(RpcServerTest, AStagedValueIsFollowedAsItGrows) {
  MemoryServer server;
  constexpr uint64_t kBytes = 3 * kMiB + 77;
  const std::string value = MakeValue("ns", "key", 1, kBytes);
  server.store.staged.assign(kBytes, '\0');
  WirePeer peer = WirePeer::Connect(server.address());
  wire::StagedValue staged = StagedAt(0, kBytes);
  staged.progress_at = 0;
  ASSERT_TRUE(peer.Send(StagedFrame(1, "key", staged)));
  WirePeer other = WirePeer::Connect(server.address());
  for (uint64_t done = 0; done < kBytes;) {
    const uint64_t step = std::min<uint64_t>(kBytes - done, 100'000);
    std::copy_n(value.begin() + static_cast<ptrdiff_t>(done), step,
                server.store.staged.begin() + static_cast<ptrdiff_t>(done));
    done += step;
    server.store.progress.store(done, std::memory_order_release);
    // Others are served meanwhile.
    ASSERT_TRUE(Ask(&other, KeyFrame(Op::kPing, 2, "")));
  }
  const auto put = ReadReply(&peer);
  ASSERT_TRUE(put);
  EXPECT_EQ(put->header.status, WireStatus::kOk);
  EXPECT_EQ(*server.store.Find("key"), value);
  EXPECT_EQ(server.store.counts().violations, 0);
}

TEST(RpcServerTest, AStagedValueThatStopsGrowingRunsIntoTheTransferDeadline) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.transfer_timeout = std::chrono::milliseconds(200);
  MemoryServer server(options);
  server.store.staged.assign(kMiB, 'x');
  server.store.progress = 300'000;
  wire::StagedValue staged = StagedAt(0, kMiB);
  staged.progress_at = 0;
  WirePeer peer = WirePeer::Connect(server.address());
  EXPECT_FALSE(Ask(&peer, StagedFrame(1, "key", staged))) << "closed";
  EXPECT_TRUE(Eventually([&] { return server.store.counts().aborted == 1; }));
  EXPECT_EQ(server.store.size(), 0u);
}

TEST(RpcServerTest, ABatchOfStagedValuesHasAStatusForEach) {
  MemoryServer server;
  server.store.staged = "0123456789";
  wire::FrameHeader header = testing::MakeHeader(Op::kMultiPutStaged, 4);
  header.item_count = 3;
  std::string body;
  for (const uint64_t bytes : {2u, 3u, 4u}) {
    wire::ItemHead head;
    head.key_bytes = 1;
    head.value_bytes = bytes;
    testing::AppendRaw(&body, wire::RawBytes(head));
  }
  body += "abc";
  for (const wire::StagedValue& staged :
       {StagedAt(0, 2), StagedAt(9, 3), StagedAt(2, 5)}) {  // fine; outside; not what its head says
    testing::AppendRaw(&body, wire::RawBytes(staged));
  }
  WirePeer peer = WirePeer::Connect(server.address());
  const auto reply = Ask(&peer, testing::MakeFrame(header, {}, body));
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->header.status, WireStatus::kOk);
  EXPECT_EQ(reply->item(0).status, WireStatus::kOk);
  EXPECT_EQ(reply->item(1).status, WireStatus::kInvalid);
  EXPECT_EQ(reply->item(2).status, WireStatus::kInvalid);
  EXPECT_EQ(*server.store.Find("a"), "01");
  EXPECT_EQ(server.store.size(), 1u);
}

TEST(RpcServerTest, AnAttachedConnectionIsHandedOverAlive) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  const auto attached = Ask(&peer, KeyFrame(Op::kAttach, 1, {}));
  ASSERT_TRUE(attached);
  EXPECT_EQ(attached->header.status, WireStatus::kOk);
  ASSERT_TRUE(Eventually([&] { return server.store.taken_over.load() >= 0; }));
  const Fd taken(server.store.taken_over.load());
  ASSERT_EQ(::send(taken.get(), "still here", 10, MSG_NOSIGNAL), 10);
  EXPECT_EQ(peer.Receive(10), "still here");
  EXPECT_TRUE(Eventually([&] { return server.store.counts().live_sessions == 0; }));
}

TEST(RpcServerTest, ValuesOfEachSizeComeBack) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  uint32_t id = 1;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{65535}, size_t{65536},
                             size_t{65537}, size_t{1} << 20, size_t{64} << 20}) {
    const std::string key = "key" + std::to_string(bytes);
    const std::string value = MakeValue("ns", key, 1, bytes);
    std::optional<WireReply> put = Ask(&peer, PutFrame(id++, key, value));
    ASSERT_TRUE(put) << bytes;
    EXPECT_EQ(put->header.status, WireStatus::kOk) << bytes;
    const std::string ask = KeyFrame(Op::kGet, id++, key);
    std::optional<WireReply> get = Ask(&peer, ask);
    ASSERT_TRUE(get) << bytes;
    EXPECT_EQ(get->header.status, WireStatus::kOk);
    EXPECT_TRUE(get->body == value) << bytes;
    EXPECT_EQ(wire::FoldChecksum(get->header.checksum, testing::HeaderOf(ask)),
              Checksum(AsBytes(value)));
    EXPECT_EQ(get->header.request_id, id - 1);
  }
  EXPECT_EQ(server.store.counts().violations, 0);
}

TEST(RpcServerTest, PipelinedRequestsAreAllAnswered) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  std::string frames;
  constexpr uint32_t kPairs = 200;
  for (uint32_t i = 0; i < kPairs; ++i) {
    const std::string key = "k" + std::to_string(i);
    frames += PutFrame(2 * i, key, MakeValue("ns", key, i, size_t{i} * 37));
    frames += KeyFrame(Op::kGet, 2 * i + 1, key);
  }
  // A reader of its own, so that neither side waits for the other.
  Thread writer("writer", [&] { EXPECT_TRUE(peer.Send(frames)); });
  for (uint32_t i = 0; i < kPairs; ++i) {
    std::optional<WireReply> put = ReadReply(&peer);
    std::optional<WireReply> get = ReadReply(&peer);
    ASSERT_TRUE(put && get) << i;
    EXPECT_EQ(put->header.request_id, 2 * i);
    EXPECT_EQ(get->header.request_id, 2 * i + 1);
    EXPECT_EQ(get->body, MakeValue("ns", "k" + std::to_string(i), i, size_t{i} * 37));
  }
}

TEST(RpcServerTest, MultiPutAndMultiGetKeepOrder) {
  MemoryServer server;
  WirePeer peer = WirePeer::Connect(server.address());
  const std::vector<std::string> keys = {"a", std::string("n\0l", 3), "c"};
  const std::vector<std::string> values = {"", MakeValue("ns", "b", 1, 70'000), "x"};
  std::optional<WireReply> put = Ask(&peer, MultiFrame(Op::kMultiPut, 1, keys, values));
  ASSERT_TRUE(put);
  ASSERT_EQ(put->body.size(), 3 * sizeof(wire::ItemResult));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(put->item(i).status, WireStatus::kOk);

  const std::string ask = MultiFrame(Op::kMultiGet, 2, {keys[1], "no", keys[2]});
  std::optional<WireReply> get = Ask(&peer, ask);
  ASSERT_TRUE(get);
  EXPECT_EQ(get->item(0).status, WireStatus::kOk);
  EXPECT_EQ(get->item(0).value_bytes, values[1].size());
  EXPECT_EQ(wire::FoldChecksum(get->item(0).checksum, testing::HeaderOf(ask)),
            Checksum(AsBytes(values[1])));
  EXPECT_EQ(wire::FoldChecksum(get->item(2).checksum, testing::HeaderOf(ask), 2),
            Checksum(AsBytes(values[2])));
  EXPECT_EQ(get->item(1).status, WireStatus::kMiss);
  EXPECT_EQ(get->body.substr(3 * sizeof(wire::ItemResult)), values[1] + values[2]);

  std::optional<WireReply> removed = Ask(&peer, MultiFrame(Op::kMultiRemove, 3, {"a", "zz"}));
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->item(0).status, WireStatus::kOk);
  EXPECT_EQ(removed->item(1).status, WireStatus::kMiss);
}

TEST(RpcServerTest, OneBadItemOfAMultiPutLeavesTheOthers) {
  MemoryServer server;
  server.store.Insert("old", "content");
  WirePeer peer = WirePeer::Connect(server.address());
  std::string frame = MultiFrame(Op::kMultiPut, 1, {"a", "old", "bad", "d"},
                                 {"1", "other", "three", std::string(100'000, 'd')});
  // Damage the value "three": its trailer no longer matches.
  frame[frame.rfind("three")] = 'T';
  std::optional<WireReply> put = Ask(&peer, frame);
  ASSERT_TRUE(put);
  EXPECT_EQ(put->item(0).status, WireStatus::kOk);
  EXPECT_EQ(put->item(1).status, WireStatus::kAlreadyExists);
  EXPECT_EQ(put->item(2).status, WireStatus::kChecksumMismatch);
  EXPECT_EQ(put->item(3).status, WireStatus::kOk);
  EXPECT_EQ(*server.store.Find("old"), "content");
  EXPECT_EQ(server.store.Find("bad"), nullptr);
  EXPECT_EQ(server.store.Find("d")->size(), 100'000U);
}

TEST(RpcServerTest, ARefusedPutIsSkippedAndTheConnectionGoesOn) {
  MemoryServer server;
  server.store.gate = [](const wire::FrameHeader& header, SlotId) -> Outcome {
    return {.status = header.op == Op::kPut ? WireStatus::kFenced : WireStatus::kOk};
  };
  server.store.error_text = "lease over";
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string value = MakeValue("ns", "k", 1, 3 << 20);
  std::optional<WireReply> put = Ask(&peer, PutFrame(1, "k", value));
  ASSERT_TRUE(put);
  EXPECT_EQ(put->header.status, WireStatus::kFenced);
  EXPECT_EQ(put->body, "lease over");
  std::optional<WireReply> get = Ask(&peer, KeyFrame(Op::kGet, 2, "k"));
  ASSERT_TRUE(get);
  EXPECT_EQ(get->header.status, WireStatus::kMiss);
  EXPECT_TRUE(get->body.empty()) << "a miss has no text";
  EXPECT_EQ(server.store.counts().aborted, 0);
}

TEST(RpcServerTest, AnswersCarryTheViewAndTheRetryTime) {
  MemoryServer server;
  server.store.SetView(ViewVersion(3, 44));
  server.store.retry_ms = 17;
  server.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kRetryLater};
  };
  WirePeer peer = WirePeer::Connect(server.address());
  std::optional<WireReply> get = Ask(&peer, KeyFrame(Op::kGet, 1, "k"));
  ASSERT_TRUE(get);
  EXPECT_EQ(get->header.status, WireStatus::kRetryLater);
  EXPECT_EQ(get->header.view_version(), ViewVersion(3, 44));
  EXPECT_EQ(get->header.retry_ms, 17U);
}

TEST(RpcServerTest, ASessionThatWaitsIsAskedAgainUntilItIsReady) {
  MemoryServer server;
  std::atomic<int> asked{0};
  server.store.gate = [&asked](const wire::FrameHeader&, SlotId) -> Outcome {
    if (++asked < 4) return {.status = WireStatus::kWrongOwner, .wait = milliseconds(2)};
    return {};
  };
  WirePeer peer = WirePeer::Connect(server.address());
  std::optional<WireReply> put = Ask(&peer, PutFrame(1, "k", "v"));
  ASSERT_TRUE(put);
  EXPECT_EQ(put->header.status, WireStatus::kOk);
  EXPECT_EQ(asked, 4);
}

TEST(RpcServerTest, ASessionThatWaitsForEverIsAnsweredAfter200Ms) {
  MemoryServer server;
  server.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kStaleNamespace, .wait = milliseconds(5)};
  };
  WirePeer peer = WirePeer::Connect(server.address());
  for (const std::string& frame : {KeyFrame(Op::kGet, 1, "k"), PutFrame(2, "k", "v")}) {
    const TimePoint start = Clock::System().Now();
    std::optional<WireReply> answer = Ask(&peer, frame);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.status, WireStatus::kStaleNamespace);
    const Duration took = Clock::System().Now() - start;
    EXPECT_GE(took, milliseconds(150));
    EXPECT_LE(took, milliseconds(1500));
  }
}

// The wait is the request's, not each item's: a hundred items do not wait a hundred times.
TEST(RpcServerTest, AMultiPutWaitsOnceForItsSession) {
  MemoryServer server;
  server.store.gate = [](const wire::FrameHeader&, SlotId) -> Outcome {
    return {.status = WireStatus::kRetryLater, .wait = milliseconds(5)};
  };
  WirePeer peer = WirePeer::Connect(server.address());
  const TimePoint start = Clock::System().Now();
  std::optional<WireReply> put =
      Ask(&peer, MultiFrame(Op::kMultiPut, 1, std::vector<std::string>(100, "k"),
                            std::vector<std::string>(100, "v")));
  ASSERT_TRUE(put);
  EXPECT_EQ(put->item(99).status, WireStatus::kRetryLater);
  EXPECT_LE(Clock::System().Now() - start, milliseconds(1500));
}

TEST(RpcServerTest, RangesVerifyAtOddOffsets) {
  MemoryServer server;
  const std::string value = MakeValue("ns", "k", 1, 300'000);
  server.store.Insert("k", value);
  WirePeer peer = WirePeer::Connect(server.address());
  const std::string ask = RangeFrame(1, "k", 65'000, 140'000);
  std::optional<WireReply> range = Ask(&peer, ask);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->body, value.substr(65'000, 140'000));
  PieceHasher hasher;
  hasher.Start({}, kPieceBytes - 65'000);
  hasher.Update(AsBytes(range->body));
  EXPECT_EQ(wire::FoldChecksum(range->header.checksum, testing::HeaderOf(ask)), hasher.Finish());
  range = Ask(&peer, RangeFrame(2, "k", 300'000, 1));
  ASSERT_TRUE(range);
  EXPECT_EQ(range->header.status, WireStatus::kOutOfRange);
}

TEST(RpcServerTest, UnixSocketServesToo) {
  const std::string path = ::testing::TempDir() + "ems_rpc_" + std::to_string(::getpid()) + ".sock";
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.unix_path = path;
  MemoryServer server(options);
  EXPECT_EQ(server.server->unix_path(), path);
  WirePeer peer = WirePeer::Connect("unix:" + path);
  ASSERT_TRUE(peer.connected());
  EXPECT_TRUE(Ask(&peer, PutFrame(1, "k", std::string(2 << 20, 'v'))));
  EXPECT_EQ(server.store.Find("k")->size(), size_t{2} << 20);
  server.server->Stop(seconds(1));
  EXPECT_FALSE(std::filesystem::exists(path)) << "the socket file goes with its server";
}

TEST(RpcServerTest, StaleUnixSocketIsTakenOverALiveOneIsNot) {
  const std::string path =
      ::testing::TempDir() + "ems_stale_" + std::to_string(::getpid()) + ".sock";
  const pid_t child = ::fork();
  if (child == 0) {  // leaves a socket file that nobody listens on
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    ::_exit(bound ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.unix_path = path;
  MemoryServer first(options);
  ASSERT_TRUE(first.status.ok()) << first.status;
  MemoryServer second(options);
  EXPECT_EQ(second.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(second.status)), ::testing::HasSubstr(path));
  WirePeer peer = WirePeer::Connect("unix:" + path);
  EXPECT_TRUE(Ask(&peer, KeyFrame(Op::kPing, 1, ""))) << "the first is undisturbed";
}

TEST(RpcServerTest, AFileInTheSocketsPlaceStays) {
  const std::string path = ::testing::TempDir() + "ems_file_" + std::to_string(::getpid());
  std::ofstream(path) << "precious";
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.unix_path = path;
  MemoryServer server(options);
  EXPECT_FALSE(server.status.ok());
  EXPECT_THAT(std::string(Message(server.status)), ::testing::HasSubstr(path));
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
  std::filesystem::remove(path);
}

TEST(RpcServerTest, BadAddressesAreRefusedByName) {
  for (const std::string address : {"nonsense", "127.0.0.1:99999", "127.0.0.1:"}) {
    RpcServerOptions options = MemoryServer::DefaultOptions();
    options.listen = address;
    MemoryServer server(options);
    EXPECT_EQ(server.status.code(), StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(Message(server.status)), ::testing::HasSubstr(address));
  }
  MemoryServer taken;
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.listen = taken.address();
  MemoryServer server(options);
  EXPECT_EQ(server.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(server.status)), ::testing::HasSubstr(taken.address()));
}

TEST(RpcServerTest, IdleConnectionsMakeRoomForNewOnesAndOneWithARequestDoesNot) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.connections_max = 32;  // 24 of one peer
  options.header_timeout = seconds(60);
  MemoryServer server(options);
  WirePeer busy = WirePeer::Connect(server.address());
  ASSERT_TRUE(Ask(&busy, KeyFrame(Op::kPing, 1, "")));
  const std::string frame = KeyFrame(Op::kPing, 2, "");
  ASSERT_TRUE(busy.Send(frame.substr(0, 10)));  // a request has begun
  std::vector<WirePeer> idle;
  for (int i = 0; i < 21; ++i) {
    idle.push_back(WirePeer::Connect(server.address()));
    ASSERT_TRUE(Ask(&idle.back(), KeyFrame(Op::kPing, 1, "")));
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Eventually([&] {
      idle.push_back(WirePeer::Connect(server.address()));
      const auto reply = Ask(&idle.back(), KeyFrame(Op::kPing, 1, ""));
      return reply && reply->header.status == WireStatus::kOk;
    })) << i;
  }
  EXPECT_GE(server.metrics.made_room.value(), 1 + 21 + 20 - 24);
  ASSERT_TRUE(busy.Send(frame.substr(10)));
  EXPECT_TRUE(ReadReply(&busy));
}

// Of its connections none is idle: each has begun a request.
TEST(RpcServerTest, OnePeersConnectionsLeaveRoomForOthersWhateverItDoes) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.connections_max = 200;
  options.header_timeout = seconds(60);
  MemoryServer server(options);
  const std::string begun = KeyFrame(Op::kPing, 1, "").substr(0, 10);
  std::vector<WirePeer> crowd;
  for (int i = 0; i < 10'000; ++i) {
    WirePeer peer = WirePeer::Connect(server.address());
    if (!peer.connected() || !peer.Send(begun)) continue;
    if (crowd.size() < 250) {
      crowd.push_back(std::move(peer));
    } else {
      peer.Reset();
    }
  }
  ASSERT_TRUE(Eventually([&] { return server.metrics.refused.value() >= 9000; }));
  EXPECT_EQ(server.metrics.connections.value(), 150);
  std::vector<WirePeer> others;
  for (int i = 0; i < 30; ++i) {
    others.emplace_back(testing::ConnectFrom("127.0.0.2", server.address()));
    ASSERT_TRUE(Ask(&others.back(), KeyFrame(Op::kPing, 1, ""))) << i;
  }
  EXPECT_EQ(server.metrics.made_room.value(), 0);
}

TEST(RpcServerTest, ConnectionsBeyondTheLimitAreToldSo) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.connections_max = 2;
  MemoryServer server(options);
  WirePeer one = WirePeer::Connect(server.address());
  WirePeer two = WirePeer::Connect(server.address());
  ASSERT_TRUE(Ask(&one, KeyFrame(Op::kPing, 1, "")));
  ASSERT_TRUE(Ask(&two, KeyFrame(Op::kPing, 1, "")));
  WirePeer three = WirePeer::Connect(server.address());
  std::optional<WireReply> refusal = ReadReply(&three);
  ASSERT_TRUE(refusal) << "a refusal is a frame";
  EXPECT_EQ(refusal->header.status, WireStatus::kRetryLater);
  EXPECT_FALSE(refusal->body.empty());
  EXPECT_TRUE(three.WaitClosed());
  EXPECT_EQ(server.metrics.refused.value(), 1);
  EXPECT_TRUE(Ask(&one, KeyFrame(Op::kPing, 2, ""))) << "old connections go on";
  two.Close();
  ASSERT_TRUE(Eventually([&] { return server.metrics.connections.value() < 2; }));
  WirePeer four = WirePeer::Connect(server.address());
  EXPECT_TRUE(Ask(&four, KeyFrame(Op::kPing, 1, ""))) << "room is found again";
}

TEST(RpcServerTest, StopWaitsForTheRequestInHand) {
  MemoryServer server;
  server.store.Insert("k", MakeValue("ns", "k", 1, 32 << 20));
  WirePeer peer = WirePeer::Connect(server.address());
  ASSERT_TRUE(peer.Send(KeyFrame(Op::kGet, 1, "k")));
  ASSERT_TRUE(Eventually([&] { return server.store.counts().handled.load() == 1; }));
  Thread stopper("stopper", [&] { server.server->Stop(seconds(10)); });
  std::optional<WireReply> get = ReadReply(&peer, seconds(10));
  ASSERT_TRUE(get) << "cut in the middle of an answer";
  EXPECT_TRUE(get->body == MakeValue("ns", "k", 1, 32 << 20));
  EXPECT_TRUE(peer.WaitClosed());
  stopper.Join();
  EXPECT_FALSE(WirePeer::Connect(server.address()).connected());
  EXPECT_EQ(server.store.counts().live_sessions, 0);
}

TEST(RpcServerTest, StopEndsIdleAndStuckConnectionsInTime) {
  MemoryServer server;
  server.store.Insert("k", std::string(64 << 20, 'v'));
  WirePeer idle = WirePeer::Connect(server.address());
  WirePeer half = WirePeer::Connect(server.address());
  WirePeer stuck = WirePeer::Connect(server.address());
  ASSERT_TRUE(Ask(&idle, KeyFrame(Op::kPing, 1, "")));
  ASSERT_TRUE(half.Send(PutFrame(1, "h", std::string(200'000, 'h')).substr(0, 100'000)));
  ASSERT_TRUE(stuck.Send(KeyFrame(Op::kGet, 1, "k")));
  ASSERT_TRUE(Eventually([&] {
    return server.store.counts().begun.load() == 1 && server.store.counts().handled.load() == 2;
  }));
  const TimePoint start = Clock::System().Now();
  server.server->Stop(milliseconds(200));
  EXPECT_LT(Clock::System().Now() - start, seconds(3));
  EXPECT_EQ(server.store.counts().live_sessions, 0);
  EXPECT_EQ(server.store.counts().aborted, 1);
  EXPECT_EQ(server.store.counts().violations, 0);
  EXPECT_EQ(server.store.Find("h"), nullptr);
}

TEST(RpcServerTest, DestructionWithOpenConnectionsReleasesThem) {
  auto server = std::make_unique<MemoryServer>();
  WirePeer peer = WirePeer::Connect(server->address());
  ASSERT_TRUE(Ask(&peer, KeyFrame(Op::kPing, 1, "")));
  server->server.reset();
  EXPECT_TRUE(peer.WaitClosed());
  EXPECT_EQ(server->store.counts().live_sessions, 0);
}

TEST(RpcServerTest, IdleConnectionsAreClosedAfterTheirTime) {
  RpcServerOptions options = MemoryServer::DefaultOptions();
  options.idle_timeout = milliseconds(100);
  MemoryServer server(options);
  WirePeer peer = WirePeer::Connect(server.address());
  ASSERT_TRUE(Ask(&peer, KeyFrame(Op::kPing, 1, "")));
  EXPECT_TRUE(peer.WaitClosed());
}

// With all descriptors in use, new connections are refused, not left hanging; the old ones go on.
TEST(RpcServerTest, FdExhaustionRefusesNewConnectionsOnly) {
  MemoryServer server;
  WirePeer old = WirePeer::Connect(server.address());
  ASSERT_TRUE(Ask(&old, PutFrame(1, "k", "v")));
  std::vector<WirePeer> clients;  // these sockets exist before the limit bites
  std::vector<Fd> ballast;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 128, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  while (true) {
    Fd fd(::dup(0));
    if (!fd.valid()) break;
    ballast.push_back(std::move(fd));
  }
  ballast.pop_back();  // one for the client's side; accept() finds none
  WirePeer refused = WirePeer::Connect(server.address());
  ASSERT_TRUE(refused.connected());
  EXPECT_TRUE(refused.WaitClosed(seconds(2))) << "it must not hang";
  EXPECT_GE(server.metrics.refused.value(), 1);
  std::optional<WireReply> get = Ask(&old, KeyFrame(Op::kGet, 2, "k"));
  EXPECT_TRUE(get);
  ballast.clear();
  ::setrlimit(RLIMIT_NOFILE, &before);
  WirePeer later = WirePeer::Connect(server.address());
  EXPECT_TRUE(Ask(&later, KeyFrame(Op::kGet, 1, "k"))) << "heals by itself";
}

}  // namespace
}  // namespace ems::fabric
