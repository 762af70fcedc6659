// What must hold: a bit that flips in an answer is seen, whatever the answer is; a value of another
// request is no value of this one.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/rpc/rpc_channel.h"
#include "tests/fabric/rpc/channel_pair.h"
#include "tests/support/scripted_server.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using testing::AnswerTo;
using testing::MakeHeader;
using wire::Op;
using wire::WireStatus;

using Pair = ChannelPair;

// One request of each kind, and what a server answers: results and texts of any bytes, values that
// the sink compares as the SDK does.
struct Asked {
  Op op;
  uint32_t items = 0;  // of a Multi request
  std::string body;    // of the answer
  WireStatus status = WireStatus::kOk;
};

// Takes an answer apart as the SDK does. Says whether all that came is what was sent.
class CheckingSink final : public AnswerSink {
 public:
  CheckingSink(const RpcRequest* request, const Asked& asked) : request_(request), asked_(asked) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    header_ = header;
    if (asked_.op == Op::kGet || asked_.op == Op::kGetRange) return 0;
    return brings_items() ? asked_.items * sizeof(wire::ItemResult) : header.body_bytes;
  }
  Status OnTable(ConstBytes table) override {
    EXPECT_TRUE(AsText(table) == std::string_view(sent_).substr(wire::kHeaderBytes, table.size()))
        << "damage that was not seen";
    for (size_t at = 0; brings_items() && at < table.size(); at += sizeof(wire::ItemResult))
      results_.push_back(wire::ReadRaw<wire::ItemResult>(table.subspan(at)));
    return OkStatus();
  }
  bool NextValue(Value* value) override {
    if (asked_.op == Op::kGet || asked_.op == Op::kGetRange)
      results_ = {{.value_bytes = header_.body_bytes, .checksum = header_.checksum}};
    if (next_ == results_.size()) return false;
    value->bytes = results_[next_++].value_bytes;
    return true;
  }
  void OnValue(uint64_t checksum) override {
    const auto item = static_cast<uint32_t>(next_ - 1);
    const uint64_t wanted = wire::FoldChecksum(results_[item].checksum, request_->header, item);
    mismatches += checksum == wanted ? 0 : 1;
  }
  void Expect(std::string answer) { sent_ = std::move(answer); }
  int mismatches = 0;

 private:
  bool brings_items() const {
    return asked_.op == Op::kMultiGet || asked_.op == Op::kMultiGetRange;
  }
  const RpcRequest* request_;
  const Asked& asked_;
  std::string sent_;
  wire::FrameHeader header_;
  std::vector<wire::ItemResult> results_;
  size_t next_ = 0;
};

std::vector<Asked> EachKind() {
  const std::string value = "sixteen of bytes";
  std::string results(2 * sizeof(wire::ItemResult), '\0');
  std::string with_values;
  for (const std::string_view part : {value, std::string("short")}) {
    const wire::ItemResult result{.value_bytes = part.size(), .checksum = Checksum(AsBytes(part))};
    testing::AppendRaw(&with_values, wire::RawBytes(result));
  }
  with_values += value + "short";
  const wire::HelloBody hello;
  return {{Op::kHello, 0, std::string(AsText(wire::RawBytes(hello)))},
          {Op::kPing, 0, ""},
          {Op::kStats, 0, "{}"},
          {Op::kPeers, 0, std::string(40, 'p')},
          {Op::kScan, 0, std::string(64, 's')},
          {Op::kPut, 0, ""},
          {Op::kGet, 0, value},
          {Op::kGetRange, 0, value},
          {Op::kExists, 0, ""},
          {Op::kRemove, 0, ""},
          {Op::kAttach, 0, ""},
          {Op::kPutStaged, 0, ""},
          {Op::kGet, 0, "no room", WireStatus::kRetryLater},
          {Op::kMultiPut, 2, results},
          {Op::kMultiExists, 2, results},
          {Op::kMultiRemove, 2, results},
          {Op::kMultiPutStaged, 2, results},
          {Op::kMultiGet, 2, with_values},
          {Op::kMultiGetRange, 2, with_values},
          {Op::kMultiPut, 2, "refused", WireStatus::kFenced}};
}

TEST(RpcChannelChecksumTest, EachFlippedBitOfAnAnswerIsSeen) {
  for (const Asked& asked : EachKind()) {
    SCOPED_TRACE(wire::OpName(asked.op));
    size_t bits = 1;
    for (size_t bit = 0; bit < bits; ++bit) {
      Pair pair;
      RpcRequest& request = pair.channel->NewRequest();
      request.header = MakeHeader(asked.op, 0);
      request.header.item_count = static_cast<uint16_t>(asked.items);
      request.head = {std::byte{'k'}};
      request.key_bytes = wire::IsKeyed(asked.op) ? 1 : 0;
      CheckingSink sink(&request, asked);
      pair.channel->Start(&sink);
      ASSERT_TRUE(pair.channel->Advance().ok());
      const std::string answer = AnswerTo(request.header, asked.body, asked.status);
      bits = answer.size() * 8;
      sink.Expect(answer);
      ASSERT_TRUE(pair.peer->Send(testing::WithFlippedBit(answer, bit)));
      const Status status = pair.channel->Advance();
      if (status.ok()) {
        ASSERT_TRUE(pair.channel->done()) << bit;
        EXPECT_EQ(sink.mismatches, 1) << "bit " << bit << " of " << bits;
      } else {
        EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
      }
    }
  }
}

// What a server says of another key, range, item or namespace is no value of this one.
TEST(RpcChannelChecksumTest, AValueOfAnotherRequestDoesNotMatch) {
  const Asked asked{Op::kGet, 0, "value"};
  for (const int what : {0, 1, 2, 3}) {
    Pair pair;
    RpcRequest& request = pair.channel->NewRequest();
    request.header = MakeHeader(Op::kGet, 0);
    request.head = {std::byte{'k'}};
    request.key_bytes = 1;
    CheckingSink sink(&request, asked);
    pair.channel->Start(&sink);
    ASSERT_TRUE(pair.channel->Advance().ok());
    wire::FrameHeader other = request.header;
    if (what == 1) other.namespace_id++;
    if (what == 2) other.namespace_generation++;
    if (what == 3) other = testing::SealedHeader(other, "l", {});
    const std::string answer = AnswerTo(other, asked.body);
    sink.Expect(answer);
    ASSERT_TRUE(pair.peer->Send(answer));
    ASSERT_TRUE(pair.channel->Advance().ok());
    EXPECT_EQ(sink.mismatches, what == 0 ? 0 : 1) << what;
  }
}

}  // namespace
}  // namespace ems::fabric
