// What must hold: a request says until when it is wanted by the clock of the server, so that one
// which is held up on its way is known for late; never later than its caller waits.
#include <gtest/gtest.h>

#include "tests/fabric/rpc/channel_pair.h"
#include "tests/support/scripted_server.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using wire::Op;
using wire::WireStatus;

constexpr uint32_t kPatienceMs = 5000;
// Both clocks are told in whole milliseconds, and what is left is rounded up: so much is taken off.
constexpr uint32_t kRoundedMs = 2;

class NoSink final : public AnswerSink {
 public:
  uint64_t OnHeader(const wire::FrameHeader&) override { return 0; }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}
};

class RpcChannelClockTest : public ::testing::Test, protected ChannelPair {
 protected:
  // Sends a Ping and takes it off the wire; its header.
  wire::FrameHeader Ask(uint32_t deadline_ms = kPatienceMs) {
    RpcRequest& request = channel->NewRequest();
    request.header.op = Op::kPing;
    request.header.deadline_ms = deadline_ms;
    channel->Start(&sink_);
    EXPECT_EQ(channel->Advance(), OkStatus());
    const std::optional<std::string> frame = peer->Receive(wire::kHeaderBytes);
    EXPECT_TRUE(frame.has_value());
    wire::FrameHeader header;
    EXPECT_EQ(wire::ParseRequest(AsBytes(*frame), 1 << 20, &header), OkStatus());
    return header;
  }
  // Answers it, at `clock` of the server.
  void Answer(const wire::FrameHeader& request, uint32_t clock) {
    wire::FrameHeader header;
    header.op = request.op;
    header.request_id = request.request_id;
    header.answer_clock = clock;
    wire::SealAnswer(request, {}, &header);
    ASSERT_TRUE(peer->Send(std::string(AsText(wire::RawBytes(header)))));
    ASSERT_EQ(channel->Advance(), OkStatus());
    ASSERT_TRUE(channel->done());
  }
  static bool SaysUntil(const wire::FrameHeader& header) {
    return (header.flags & wire::kFlagUntil) != 0;
  }

  NoSink sink_;
};

TEST_F(RpcChannelClockTest, UntilTheServersClockIsKnownARequestSaysHowLong) {
  const wire::FrameHeader first = Ask();
  EXPECT_FALSE(SaysUntil(first));
  EXPECT_EQ(first.deadline_ms, kPatienceMs);
  Answer(first, 0);
  EXPECT_FALSE(SaysUntil(Ask())) << "a server that does not tell its clock";
}

TEST_F(RpcChannelClockTest, FromTheFirstAnswerOnItSaysUntilWhen) {
  for (const uint32_t clock : {7U, 1'000'000U, UINT32_MAX - 100}) {
    *static_cast<ChannelPair*>(this) = ChannelPair();
    const uint32_t before = wire::ClockMs(Clock::System().Now());
    Answer(Ask(), clock);
    const wire::FrameHeader next = Ask();
    const uint32_t passed = wire::ClockMs(Clock::System().Now()) - before;
    EXPECT_TRUE(SaysUntil(next));
    EXPECT_GE(next.deadline_ms - clock, kPatienceMs - kRoundedMs) << clock;
    EXPECT_LE(next.deadline_ms - clock, kPatienceMs - kRoundedMs + passed)
        << "later than its caller waits";
    Answer(next, clock);
    EXPECT_FALSE(SaysUntil(Ask(0))) << "who does not say how long he waits";
  }
}

// An answer that was long under way says less of the clock than there is.
TEST_F(RpcChannelClockTest, TheAnswerThatTookLeastSaysTheClockBest) {
  Answer(Ask(), 100'000);
  Answer(Ask(), 40'000);
  const wire::FrameHeader slow = Ask();
  EXPECT_GE(slow.deadline_ms, 100'000 + kPatienceMs - kRoundedMs);
  Answer(slow, 200'000);
  EXPECT_GE(Ask().deadline_ms, 200'000 + kPatienceMs - kRoundedMs);
}

}  // namespace
}  // namespace ems::fabric
