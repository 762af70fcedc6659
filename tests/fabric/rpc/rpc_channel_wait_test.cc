// What must hold: a channel sleeps for an answer no longer than it says, and ends at its deadline
// all the same; a value is read straight into its memory, which nothing else touches; a value
// leaves with its trailer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <optional>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "fabric/rpc/rpc_channel.h"
#include "tests/fabric/rpc/channel_pair.h"
#include "tests/support/scripted_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using testing::AnswerTo;
using testing::MakeValue;
using wire::Op;
using wire::WireStatus;

// Expects one value in one buffer; empty: in none.
class OneValueSink final : public AnswerSink {
 public:
  explicit OneValueSink(MutableBytes into) : into_(into) {}
  MutableBytes Expected() const override { return into_; }
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    bytes_ = header.body_bytes;
    return 0;
  }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value* value) override {
    if (given_) return false;
    given_ = true;
    value->bytes = bytes_;
    value->into = std::span(&into_, 1);
    return true;
  }
  void OnValue(uint64_t sum) override { checksum = sum; }
  uint64_t checksum = 0;

 private:
  MutableBytes into_;
  uint64_t bytes_ = 0;
  bool given_ = false;
};

MutableBytes Bytes(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

struct Pair : ChannelPair {
  // Sends a Get and takes it off the wire; its header.
  wire::FrameHeader StartGet(AnswerSink* sink) {
    RpcRequest& request = channel->NewRequest();
    request.header.op = Op::kGet;
    request.head = {std::byte{'k'}};
    request.key_bytes = 1;
    channel->Start(sink);
    EXPECT_TRUE(channel->Advance().ok());
    const std::optional<std::string> frame = peer->Receive(wire::kHeaderBytes + 1);
    wire::FrameHeader header;
    EXPECT_TRUE(frame &&
                wire::ParseRequest(AsBytes(*frame).first(wire::kHeaderBytes), kMiB, &header).ok());
    return header;
  }
};

// One that left a moment later would wake its receiver once more.
TEST(RpcChannelWaitTest, AValueOfAPieceLeavesWithItsTrailer) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);  // shows what was sent at once
  RpcChannel channel((Fd(fds[0])));
  const Fd peer(fds[1]);
  const std::string value(kPieceBytes, 'v');
  const ConstBytes part = AsBytes(value);
  OneValueSink sink({});
  RpcRequest& request = channel.NewRequest();
  request.header.op = Op::kPut;
  request.head = {std::byte{'k'}};
  request.key_bytes = 1;
  request.values.emplace_back(std::span(&part, 1));
  channel.Start(&sink);
  ASSERT_TRUE(channel.Advance().ok());
  std::vector<char> got(2 * value.size());
  EXPECT_EQ(::recv(peer.get(), got.data(), got.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(wire::kHeaderBytes + 1 + value.size() + wire::kTrailerBytes));
}

TEST(RpcChannelWaitTest, WhoAwaitsBytesSleepsForThemAndNoLongerThanANap) {
  Pair pair;
  OneValueSink sink({});
  EXPECT_FALSE(pair.channel->awaits_bytes());
  const wire::FrameHeader get = pair.StartGet(&sink);
  ASSERT_TRUE(pair.channel->awaits_bytes());
  const TimePoint start = Clock::System().Now();
  ASSERT_TRUE(pair.channel->AwaitBytes().ok());
  EXPECT_GE(Clock::System().Now() - start, RpcChannel::kNap / 2);
  const std::string answer = AnswerTo(get, "");
  for (const std::string& part : {answer.substr(0, 10), answer.substr(10)}) {
    ASSERT_TRUE(pair.channel->awaits_bytes());
    ASSERT_TRUE(pair.peer->Send(part));
    ASSERT_TRUE(pair.channel->AwaitBytes().ok());
  }
  EXPECT_TRUE(pair.channel->done());
}

// The value's memory is given before its length is known.
TEST(RpcChannelWaitTest, AValueIsReadWhereItIsExpectedWhateverComesInstead) {
  const std::string value = MakeValue("ns", "k", 1, 20'000);
  for (const size_t room :
       {size_t{500}, size_t{1024}, size_t{1025}, size_t{19'999}, size_t{20'000}, size_t{30'000}}) {
    for (const size_t first :
         {size_t{30}, size_t{64}, size_t{1088}, size_t{1089}, size_t{7000}, value.size() + 64}) {
      Pair pair;
      std::string into(room, '?');
      OneValueSink sink(Bytes(&into));
      const std::string answer = AnswerTo(pair.StartGet(&sink), value);
      ASSERT_TRUE(pair.peer->Send(answer.substr(0, first)));
      ASSERT_TRUE(pair.channel->Advance().ok());
      ASSERT_TRUE(pair.peer->Send(answer.substr(first)));
      while (!pair.channel->done()) ASSERT_TRUE(pair.channel->Advance().ok()) << room << first;
      EXPECT_EQ(sink.checksum, Checksum(AsBytes(value))) << room << " after " << first;
      if (room >= value.size()) {
        EXPECT_EQ(into.substr(0, value.size()), value);
        EXPECT_EQ(into.find_first_not_of('?', value.size()), std::string::npos);
      }
    }
  }
}

TEST(RpcChannelWaitTest, AnErrorWhereAValueIsExpectedLeavesItsMemoryAlone) {
  for (const size_t bytes : {size_t{0}, size_t{1}, wire::kErrorTextMax}) {
    Pair pair;
    std::string into(8000, '?');
    OneValueSink sink(Bytes(&into));
    const std::string text(bytes, 't');
    ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&sink), text, WireStatus::kWrongOwner)));
    ASSERT_TRUE(pair.channel->Advance().ok());
    ASSERT_TRUE(pair.channel->done());
    EXPECT_EQ(pair.channel->text(), text);
    EXPECT_EQ(into, std::string(8000, '?'));
  }
}

TEST(RpcChannelWaitTest, WhatFollowsAnAnswerIntoTheValuesMemoryEndsTheConnection) {
  Pair pair;
  std::string into(8000, '?');
  OneValueSink sink(Bytes(&into));
  const std::string answer = AnswerTo(pair.StartGet(&sink), std::string(2000, 'v'));
  ASSERT_TRUE(pair.peer->Send(answer + std::string(3000, 'x')));
  EXPECT_EQ(pair.channel->Advance().code(), StatusCode::kDataLoss);
}

TEST(RpcChannelWaitTest, ASocketThatIsGivenAwayDoesNotSleep) {
  Pair pair;
  const Fd socket = pair.channel->Release();
  EXPECT_NE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK, 0);
  timeval most{1, 1};
  socklen_t size = sizeof(most);
  ASSERT_EQ(::getsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &most, &size), 0);
  EXPECT_TRUE(most.tv_sec == 0 && most.tv_usec == 0);
}

TEST(RpcChannelWaitTest, OneRequestEndsAtItsDeadlineToo) {
  for (const Duration time : {RpcChannel::kNap / 2, RpcChannel::kNap * 3}) {
    Pair silent;
    OneValueSink sink({});
    silent.StartGet(&sink);
    RpcChannel* const channel = silent.channel.get();
    Status result;
    const TimePoint start = Clock::System().Now();
    RunAll(std::span(&channel, 1), Deadline::After(time), std::span(&result, 1));
    const Duration took = Clock::System().Now() - start;
    EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded);
    EXPECT_GE(took, time);
    EXPECT_LE(took, time + milliseconds(900));
  }
}

}  // namespace
}  // namespace ems::fabric
