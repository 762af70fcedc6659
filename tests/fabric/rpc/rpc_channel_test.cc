// What must hold: an answer means the same however it is cut on its way; one that does not belong
// to the request, or is damaged, ends the connection and is never taken for a value.
#include "fabric/rpc/rpc_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/thread_pool.h"
#include "tests/fabric/rpc/channel_pair.h"
#include "tests/support/memory_server.h"
#include "tests/support/scripted_server.h"
#include "tests/support/self_verifying.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AnswerTo;
using testing::Drip;
using testing::MakeHeader;
using testing::MakeValue;
using testing::MemoryServer;
using testing::WirePeer;
using wire::Op;
using wire::WireStatus;

// Takes one value into the given parts.
class OneValueSink final : public AnswerSink {
 public:
  explicit OneValueSink(std::vector<MutableBytes> parts) : parts_(std::move(parts)) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    bytes = header.body_bytes;
    return 0;
  }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value* value) override {
    if (given_) return false;
    given_ = true;
    value->bytes = bytes;
    value->into = parts_;
    return true;
  }
  void OnValue(uint64_t sum) override {
    checksum = sum;
    ++values;
  }
  uint64_t bytes = 0, checksum = 0;
  int values = 0;

 private:
  std::vector<MutableBytes> parts_;
  bool given_ = false;
};

// A table in front, then values of the lengths given.
class TableSink final : public AnswerSink {
 public:
  TableSink(uint64_t table_bytes, std::vector<uint64_t> values)
      : table_bytes_(table_bytes), values_(std::move(values)) {}
  uint64_t OnHeader(const wire::FrameHeader&) override { return table_bytes_; }
  Status OnTable(ConstBytes bytes) override {
    table.assign(AsText(bytes));
    return verdict;
  }
  bool NextValue(Value* value) override {
    if (next_ == values_.size()) return false;
    buffers.emplace_back(values_[next_], '\0');
    into_ = std::as_writable_bytes(std::span(buffers.back()));
    value->bytes = values_[next_++];
    value->into = std::span(&into_, 1);
    return true;
  }
  void OnValue(uint64_t sum) override { sums.push_back(sum); }
  Status verdict;
  std::string table;
  std::vector<std::string> buffers;
  std::vector<uint64_t> sums;

 private:
  uint64_t table_bytes_;
  std::vector<uint64_t> values_;
  size_t next_ = 0;
  MutableBytes into_;
};

MutableBytes Bytes(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

struct Pair : ChannelPair {
  // Sends a Get and takes it off the wire; its header.
  wire::FrameHeader StartGet(AnswerSink* sink, std::string_view key = "k") {
    RpcRequest& request = channel->NewRequest();
    request.header.op = Op::kGet;
    const ConstBytes raw = AsBytes(key);
    request.head.assign(raw.begin(), raw.end());
    request.key_bytes = static_cast<uint16_t>(key.size());
    channel->Start(sink);
    EXPECT_TRUE(channel->Advance().ok());
    std::optional<std::string> frame = peer->Receive(wire::kHeaderBytes + key.size());
    EXPECT_TRUE(frame.has_value());
    wire::FrameHeader header;
    EXPECT_TRUE(wire::ParseRequest(AsBytes(*frame).first(64), 1 << 20, &header).ok());
    EXPECT_EQ(frame->substr(64), key);
    return header;
  }
};

TEST(RpcChannelTest, APutIsSentAsOneFrameWhateverItsParts) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    const std::string value = MakeValue("ns", "k", 1, random() % 400'000);
    std::vector<ConstBytes> parts;
    for (size_t at = 0; at < value.size();) {
      const size_t take = std::min<size_t>(value.size() - at, random() % 70'000);
      parts.push_back(AsBytes(value).subspan(at, take));  // some are empty
      at += take;
    }
    Pair pair;
    OneValueSink sink({});
    RpcRequest& request = pair.channel->NewRequest();
    request.header = MakeHeader(Op::kPut, 0);
    request.head = {std::byte{'k'}};
    request.key_bytes = 1;
    request.values.emplace_back(parts);
    pair.channel->Start(&sink);
    Thread pump("pump", [&] {
      while (!pair.channel->done()) {
        pollfd poll{.fd = pair.channel->fd(), .events = pair.channel->wants(), .revents = 0};
        ::poll(&poll, 1, 5000);
        if (!pair.channel->Advance().ok()) return;
      }
    });
    std::optional<std::string> got = pair.peer->Receive(64 + 1 + value.size() + 8);
    ASSERT_TRUE(got) << "seed " << seed << " round " << round;
    const auto header = wire::ReadRaw<wire::FrameHeader>(AsBytes(*got));
    EXPECT_TRUE(*got == testing::PutFrame(header.request_id, "k", value)) << "round " << round;
    ASSERT_TRUE(pair.peer->Send(AnswerTo(header, "")));
    pump.Join();
    EXPECT_TRUE(pair.channel->done());
  }
}

TEST(RpcChannelTest, AnAnswerSplitAtAnyByteIsTheSame) {
  const std::string value = MakeValue("ns", "k", 1, 100);
  Pair pair;
  for (size_t cut = 0; cut <= 64 + value.size(); ++cut) {
    std::string into(value.size(), '\0');
    OneValueSink sink({Bytes(&into)});
    const std::string answer = AnswerTo(pair.StartGet(&sink), value);
    EXPECT_FALSE(pair.channel->answer_begun());
    ASSERT_TRUE(pair.peer->Send(answer.substr(0, cut)));
    ASSERT_TRUE(pair.channel->Advance().ok()) << cut;
    EXPECT_EQ(pair.channel->answer_begun(), cut > 0);
    EXPECT_EQ(pair.channel->done(), cut == answer.size());
    if (cut < answer.size()) {
      ASSERT_TRUE(pair.peer->Send(answer.substr(cut)));
      ASSERT_TRUE(pair.channel->Advance().ok()) << cut;
    }
    ASSERT_TRUE(pair.channel->done()) << cut;
    EXPECT_EQ(into, value);
    EXPECT_EQ(sink.values, 1);
    EXPECT_EQ(sink.checksum, Checksum(AsBytes(value)));
  }
}

TEST(RpcChannelTest, AValueIsScatteredOverPartsOfAnySize) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    const std::string value = MakeValue("ns", "k", 1, random() % 150'000);
    std::string into(value.size() + 10, '\0');
    std::vector<MutableBytes> parts;
    for (size_t at = 0; at < value.size();) {
      const size_t take = std::min<size_t>(value.size() - at, random() % 20'000);
      parts.push_back(Bytes(&into).subspan(at, take));
      at += take;
    }
    Pair pair;
    OneValueSink sink(parts);
    const std::string answer = AnswerTo(pair.StartGet(&sink), value);
    for (size_t at = 0; at < answer.size();) {
      const size_t take = std::min<size_t>(answer.size() - at, 1 + random() % 50'000);
      ASSERT_TRUE(pair.peer->Send(answer.substr(at, take)));
      ASSERT_TRUE(pair.channel->Advance().ok());
      at += take;
    }
    ASSERT_TRUE(pair.channel->done()) << "seed " << seed << " round " << round;
    EXPECT_TRUE(into.substr(0, value.size()) == value) << "seed " << seed << " round " << round;
    EXPECT_EQ(sink.checksum, Checksum(AsBytes(value)));
    EXPECT_EQ(into.substr(value.size()), std::string(10, '\0')) << "nothing beyond the value";
  }
}

TEST(RpcChannelTest, AnEmptyValueIsAValue) {
  Pair pair;
  OneValueSink sink({});
  ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&sink), "")));
  ASSERT_TRUE(pair.channel->Advance().ok());
  EXPECT_TRUE(pair.channel->done());
  EXPECT_EQ(sink.values, 1);
  EXPECT_EQ(sink.checksum, Checksum({}));
}

TEST(RpcChannelTest, AValueThatDoesNotFitIsDroppedAndTheChannelGoesOn) {
  Pair pair;
  const std::string value = MakeValue("ns", "k", 1, 300'000);
  std::string small(100, '\x7f');
  OneValueSink sink({Bytes(&small)});
  const std::string answer = AnswerTo(pair.StartGet(&sink), value);
  for (size_t at = 0; at < answer.size(); at += 50'000) {
    ASSERT_TRUE(pair.peer->Send(answer.substr(at, 50'000)));
    ASSERT_TRUE(pair.channel->Advance().ok());
  }
  ASSERT_TRUE(pair.channel->done());
  EXPECT_EQ(sink.values, 1);
  EXPECT_EQ(sink.checksum, Checksum(AsBytes(value))) << "dropped bytes are checksummed too";
  EXPECT_EQ(small, std::string(100, '\x7f')) << "a dropped value leaves the memory alone";
  std::string into(2, '\0');
  OneValueSink next({Bytes(&into)});
  ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&next), "ab")));
  ASSERT_TRUE(pair.channel->Advance().ok());
  EXPECT_EQ(into, "ab");
}

TEST(RpcChannelTest, TextOfAnErrorIsKept) {
  Pair pair;
  OneValueSink sink({});
  const std::string answer =
      AnswerTo(pair.StartGet(&sink), "65 MiB is too much", WireStatus::kTooLarge);
  ASSERT_TRUE(pair.peer->Send(answer.substr(0, 70)));
  ASSERT_TRUE(pair.channel->Advance().ok());
  EXPECT_FALSE(pair.channel->done());
  ASSERT_TRUE(pair.peer->Send(answer.substr(70)));
  ASSERT_TRUE(pair.channel->Advance().ok());
  ASSERT_TRUE(pair.channel->done());
  EXPECT_EQ(pair.channel->text(), "65 MiB is too much");
  EXPECT_EQ(pair.channel->answer().status, WireStatus::kTooLarge);
  EXPECT_EQ(sink.values, 0);
  // The next answer has no old text.
  OneValueSink next({});
  ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&next), "", WireStatus::kMiss)));
  ASSERT_TRUE(pair.channel->Advance().ok());
  EXPECT_TRUE(pair.channel->text().empty());
}

TEST(RpcChannelTest, AnAnswerToAnotherRequestEndsTheConnection) {
  for (const int what : {0, 1, 2}) {
    Pair pair;
    std::string into(5, '\0');
    OneValueSink sink({Bytes(&into)});
    wire::FrameHeader request = pair.StartGet(&sink);
    if (what == 0) request.request_id++;
    if (what == 1) request.op = Op::kExists;
    std::string answer = AnswerTo(request, "wrong");
    if (what == 2) answer[50] ^= 4;
    ASSERT_TRUE(pair.peer->Send(answer));
    EXPECT_EQ(pair.channel->Advance().code(), StatusCode::kDataLoss) << what;
    EXPECT_EQ(into, std::string(5, '\0')) << what;
    EXPECT_EQ(sink.values, 0) << what;
  }
}

TEST(RpcChannelTest, KnowsHowMuchOfARequestHasLeftAndWhetherItsServerHasGone) {
  Pair pair;
  OneValueSink sink({});
  const std::string value(100, 'v');
  const ConstBytes bytes = AsBytes(value);
  RpcRequest& request = pair.channel->NewRequest();
  request.header.op = Op::kPut;
  request.head = {std::byte{'k'}};
  request.key_bytes = 1;
  request.values.push_back(std::span(&bytes, 1));
  EXPECT_FALSE(pair.channel->HungUp());
  pair.channel->Start(&sink);
  EXPECT_EQ(pair.channel->sent_bytes(), 0U);
  ASSERT_TRUE(pair.channel->Advance().ok());
  EXPECT_EQ(pair.channel->sent_bytes(), wire::kHeaderBytes + 1 + 100 + wire::kTrailerBytes);
  ASSERT_TRUE(pair.peer->Send(AnswerTo(request.header, "")));
  ASSERT_TRUE(pair.channel->Advance().ok());
  ASSERT_TRUE(pair.channel->done());
  EXPECT_FALSE(pair.channel->HungUp());
  pair.peer->Close();
  EXPECT_TRUE(pair.channel->HungUp());
}

// Bytes behind a refusal were once kept, and taken for the answer to the next request.
TEST(RpcChannelTest, BytesBehindAnAnswerEndTheConnection) {
  for (const WireStatus status : {WireStatus::kOk, WireStatus::kMiss, WireStatus::kTooLarge}) {
    Pair pair;
    std::string into(5, '\0');
    OneValueSink sink({Bytes(&into)});
    wire::FrameHeader request = pair.StartGet(&sink);
    const std::string_view body = status == WireStatus::kMiss ? "" : "first";
    const std::string answer = AnswerTo(request, body, status);
    request.request_id++;
    ASSERT_TRUE(pair.peer->Send(answer + AnswerTo(request, "early")));
    EXPECT_EQ(pair.channel->Advance().code(), StatusCode::kDataLoss) << wire::StatusName(status);
    EXPECT_FALSE(pair.channel->done());
  }
}

TEST(RpcChannelTest, APeerThatClosesBeforeTheEndIsUnavailable) {
  const std::string value(100, 'v');
  for (const size_t cut : {0UL, 1UL, 63UL, 64UL, 65UL, 163UL}) {
    Pair pair;
    std::string into(100, '\0');
    OneValueSink sink({Bytes(&into)});
    const std::string answer = AnswerTo(pair.StartGet(&sink), value);
    ASSERT_TRUE(pair.peer->Send(answer.substr(0, cut)));
    pair.peer->Close();
    Status status = pair.channel->Advance();
    if (status.ok() && !pair.channel->done()) status = pair.channel->Advance();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << cut << " " << status;
    EXPECT_EQ(pair.channel->answer_begun(), cut > 0) << cut;
    EXPECT_EQ(sink.values, 0) << cut;
  }
}

TEST(RpcChannelTest, TableAndValuesMustFillTheBodyExactly) {
  struct Case {
    uint64_t table;
    std::vector<uint64_t> values;
    bool good;
  };
  for (const Case& c : {Case{10, {60, 30}, true}, Case{100, {}, true}, Case{100, {0, 0}, true},
                        Case{101, {}, false}, Case{10, {60, 31}, false}, Case{10, {60, 29}, false},
                        Case{10, {}, false}}) {
    Pair pair;
    TableSink sink(c.table, c.values);
    const std::string body = MakeValue("ns", "k", 1, 100);
    ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&sink), body)));
    const Status status = pair.channel->Advance();
    EXPECT_EQ(status.ok() && pair.channel->done(), c.good) << status;
    if (!c.good) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      continue;
    }
    std::string all = sink.table;
    for (const std::string& value : sink.buffers) all += value;
    EXPECT_EQ(all, body);
    EXPECT_EQ(sink.sums.size(), c.values.size());
  }
}

// What comes later would be taken for the next answer.
TEST(RpcChannelTest, AnAnswerThatIsTooLongIsRefusedBeforeItsRestComes) {
  Pair pair;
  TableSink sink(10, {60});
  const std::string answer = AnswerTo(pair.StartGet(&sink), MakeValue("ns", "k", 1, 100));
  ASSERT_TRUE(pair.peer->Send(answer.substr(0, answer.size() - 30)));
  EXPECT_EQ(pair.channel->Advance().code(), StatusCode::kDataLoss);
}

// Reads of equal length once looked like a socket without news: the last part stayed unread.
TEST(RpcChannelTest, ATableOfWholeReadAheadsIsReadToItsEnd) {
  for (const uint64_t reads : {2U, 3U, 5U, 8U}) {
    Pair pair;
    const std::string body = MakeValue("ns", "k", reads, reads * 8192 - wire::kHeaderBytes);
    TableSink sink(body.size(), {});
    ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&sink), body)));
    ASSERT_TRUE(pair.channel->Advance().ok());
    EXPECT_TRUE(pair.channel->done()) << reads;
    EXPECT_EQ(sink.table, body);
  }
}

TEST(RpcChannelTest, ARefusedTableEndsTheConnection) {
  Pair pair;
  TableSink sink(10, {90});
  sink.verdict = Error(StatusCode::kDataLoss, "results make no sense");
  ASSERT_TRUE(pair.peer->Send(AnswerTo(pair.StartGet(&sink), std::string(100, 'b'))));
  EXPECT_EQ(pair.channel->Advance(), sink.verdict);
  EXPECT_TRUE(sink.sums.empty());
}

TEST(RunAllTest, TheDeadlineEndsWhatIsNotDone) {
  Pair quick, silent, broken;
  OneValueSink sinks[3] = {OneValueSink({}), OneValueSink({}), OneValueSink({})};
  ASSERT_TRUE(quick.peer->Send(AnswerTo(quick.StartGet(&sinks[0]), "")));
  silent.StartGet(&sinks[1]);
  broken.StartGet(&sinks[2]);
  broken.peer->Close();
  RpcChannel* const channels[] = {quick.channel.get(), silent.channel.get(), broken.channel.get()};
  Status results[3];
  const TimePoint start = Clock::System().Now();
  RunAll(channels, Deadline::After(milliseconds(100)), results);
  const Duration took = Clock::System().Now() - start;
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_EQ(results[1].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(results[2].code(), StatusCode::kUnavailable);
  EXPECT_GE(took, milliseconds(90));
  EXPECT_LE(took, milliseconds(1000));
}

TEST(RunAllTest, DrivesAHundredChannelsAtOnce) {
  MemoryServer server;
  Result<Address> address = ParseAddress(server.address());
  std::vector<std::unique_ptr<RpcChannel>> channels;
  std::vector<std::string> buffers(100, std::string(200'000, '\0'));
  std::vector<std::unique_ptr<OneValueSink>> sinks;
  std::vector<RpcChannel*> borrowed;
  for (size_t i = 0; i < 100; ++i) {
    const std::string key = "k" + std::to_string(i);
    server.store.Insert(key, MakeValue("ns", key, i, 200'000));
    Result<std::unique_ptr<RpcChannel>> channel = RpcChannel::Open(*address, seconds(5));
    ASSERT_TRUE(channel.ok()) << channel.status();
    EXPECT_EQ((*channel)->hello().boot_id, 77U);
    RpcRequest& request = (*channel)->NewRequest();
    request.header = MakeHeader(Op::kGet, 0);
    const ConstBytes raw = AsBytes(key);
    request.head.assign(raw.begin(), raw.end());
    request.key_bytes = static_cast<uint16_t>(key.size());
    sinks.push_back(std::make_unique<OneValueSink>(std::vector{Bytes(&buffers[i])}));
    (*channel)->Start(sinks.back().get());
    borrowed.push_back(channel->get());
    channels.push_back(std::move(*channel));
  }
  std::vector<Status> results(100);
  RunAll(borrowed, Deadline::After(seconds(20)), results);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(results[i].ok()) << results[i];
    EXPECT_TRUE(buffers[i] == MakeValue("ns", "k" + std::to_string(i), i, 200'000)) << i;
  }
}

// Connects, greets and asks, several servers at the same time.
TEST(RunAllTest, WhoIsDoneMayStartTheNextRequest) {
  MemoryServer a, b;
  a.store.Insert("k", "value");
  const Result<Address> addresses[] = {ParseAddress(a.address()), ParseAddress(b.address()),
                                       ParseAddress("127.0.0.1:1")};
  std::vector<std::unique_ptr<RpcChannel>> channels;
  std::vector<RpcChannel*> borrowed;
  for (const auto& address : addresses) {
    auto started = RpcChannel::StartOpen(*address, 0);
    if (!started.ok()) continue;  // refused at once
    channels.push_back(*std::move(started));
    borrowed.push_back(channels.back().get());
  }
  ASSERT_GE(channels.size(), 2U);
  std::vector<Status> results(channels.size());
  std::vector<std::unique_ptr<TableSink>> sinks(channels.size());
  RunAll(borrowed, Deadline::After(seconds(10)), results, {}, [&](size_t i) {
    if (sinks[i] != nullptr) return;
    EXPECT_TRUE(borrowed[i]->Greeted().ok());
    EXPECT_EQ(borrowed[i]->hello().boot_id, 77U);
    sinks[i] = std::make_unique<TableSink>(0, std::vector<uint64_t>{});
    RpcRequest& request = borrowed[i]->NewRequest();
    request.header = MakeHeader(Op::kExists, 0);
    const ConstBytes raw = AsBytes("k");
    request.head.assign(raw.begin(), raw.end());
    request.key_bytes = 1;
    borrowed[i]->Start(sinks[i].get());
  });
  EXPECT_TRUE(results[0].ok()) << results[0];
  EXPECT_EQ(borrowed[0]->answer().status, WireStatus::kOk);
  EXPECT_EQ(borrowed[1]->answer().status, WireStatus::kMiss);
  for (size_t i = 2; i < results.size(); ++i)
    EXPECT_EQ(results[i].code(), StatusCode::kUnavailable);
}

// Several times what one Advance moves, in values whose ends fall anywhere in a step.
TEST(RunAllTest, LongValuesArriveStepByStep) {
  MemoryServer server;
  const Result<Address> address = ParseAddress(server.address());
  Result<std::unique_ptr<RpcChannel>> channel = RpcChannel::Open(*address, seconds(5));
  ASSERT_TRUE(channel.ok()) << channel.status();
  for (const uint64_t bytes : {RpcChannel::kStepBytes - wire::kHeaderBytes, RpcChannel::kStepBytes,
                               RpcChannel::kStepBytes + 1, 5 * RpcChannel::kStepBytes + 7}) {
    const std::string key = "k" + std::to_string(bytes);
    server.store.Insert(key, MakeValue("ns", key, 1, bytes));
    std::string buffer(bytes, '\0');
    OneValueSink sink(std::vector{Bytes(&buffer)});
    RpcRequest& request = (*channel)->NewRequest();
    request.header = MakeHeader(Op::kGet, 0);
    const ConstBytes raw = AsBytes(key);
    request.head.assign(raw.begin(), raw.end());
    request.key_bytes = static_cast<uint16_t>(key.size());
    (*channel)->Start(&sink);
    RpcChannel* const one = channel->get();
    Status result;
    RunAll(std::span(&one, 1), Deadline::After(seconds(20)), std::span(&result, 1));
    ASSERT_TRUE(result.ok()) << result;
    EXPECT_TRUE(buffer == MakeValue("ns", key, 1, bytes)) << bytes;
  }
}

// A peer that takes whatever comes, as fast as it comes, must not outlast the deadline either.
TEST(RunAllTest, ALongPutEndsAtTheDeadline) {
  Pair pair;
  Thread reader("reader", [&] {
    while (pair.peer->Receive(64 * kKiB)) {
    }
  });
  const std::string value(256 * kMiB, 'v');
  const ConstBytes bytes = AsBytes(value);
  OneValueSink sink({});
  RpcRequest& request = pair.channel->NewRequest();
  request.header.op = Op::kPut;
  request.head = {std::byte{'k'}};
  request.key_bytes = 1;
  request.values.push_back(std::span(&bytes, 1));
  pair.channel->Start(&sink);
  RpcChannel* const one = pair.channel.get();
  Status result;
  RunAll(std::span(&one, 1), Deadline::After(milliseconds(0)), std::span(&result, 1));
  EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded) << result;
  pair.channel.reset();
  reader.Join();
}

// Each look at the socket finds more there: each value that has been taken has sent the
// next one. Time is looked at between two steps, not only when nothing comes.
TEST(RunAllTest, AnAnswerThatNeverPausesEndsAtTheDeadline) {
  constexpr uint64_t kValueBytes = 64 * kKiB;
  constexpr uint64_t kValuesAStep = RpcChannel::kStepBytes / kValueBytes;
  constexpr uint64_t kValues = 16 * kValuesAStep;
  class EndlessSink final : public AnswerSink {
   public:
    explicit EndlessSink(WirePeer* peer) : peer_(peer) {}
    uint64_t OnHeader(const wire::FrameHeader&) override { return 0; }
    Status OnTable(ConstBytes) override { return OkStatus(); }
    bool NextValue(Value* value) override {
      value->bytes = kValueBytes;
      value->into = std::span(&into_, 1);
      return taken < kValues;
    }
    void OnValue(uint64_t) override {
      ++taken;
      if (taken < kValues) {
        EXPECT_TRUE(peer_->Send(bytes_));
      }
    }
    uint64_t taken = 0;

   private:
    WirePeer* peer_;
    std::string bytes_ = std::string(kValueBytes, 'v');
    std::string room_ = std::string(kValueBytes, '\0');
    MutableBytes into_ = Bytes(&room_);
  };
  Pair pair;
  EndlessSink sink(&*pair.peer);
  const wire::FrameHeader request = pair.StartGet(&sink);
  wire::FrameHeader answer;
  answer.op = request.op;
  answer.request_id = request.request_id;
  answer.body_bytes = kValues * kValueBytes;
  wire::SealAnswer(request, {}, &answer);
  ASSERT_TRUE(pair.peer->Send(AsText(wire::RawBytes(answer))));
  ASSERT_TRUE(pair.peer->Send(std::string(kValueBytes, 'v')));
  RpcChannel* const one = pair.channel.get();
  Status result;
  RunAll(std::span(&one, 1), Deadline::After(milliseconds(0)), std::span(&result, 1));
  EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded) << result;
  EXPECT_LE(sink.taken, 3 * kValuesAStep) << "a step or two after the deadline, no more";
}

// A byte now and then is no reason to wait any longer.
TEST(RunAllTest, AnAnswerThatDripsEndsAtTheDeadline) {
  const std::string body = MakeValue("ns", "k", 1, 100);
  std::string into(body.size(), '\0');
  OneValueSink value({Bytes(&into)});
  TableSink table(body.size(), {});
  for (AnswerSink* const sink : std::initializer_list<AnswerSink*>{&value, &table}) {
    Pair pair;
    const std::string answer = AnswerTo(pair.StartGet(sink), body);
    Thread dripper("dripper", [&] { Drip(&*pair.peer, answer); });  // 820 ms for all of it
    RpcChannel* const one = pair.channel.get();
    Status result;
    RunAll(std::span(&one, 1), Deadline::After(milliseconds(100)), std::span(&result, 1));
    EXPECT_EQ(result.code(), StatusCode::kDeadlineExceeded) << result;
    pair.channel.reset();
  }
}

}  // namespace
}  // namespace ems::fabric
