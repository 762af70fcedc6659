// What must hold: items of every kind reach the servers as they are and come back in order; a key
// that is none fails alone; a call without a timeout of its own has the client's.
#include "mp_sdk/internal/server_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/checksum.h"
#include "tests/support/memory_server.h"
#include "tests/support/self_verifying.h"

namespace ems::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::MakeValue;
using testing::MemoryServer;
using wire::Op;

class ServerCallsTest : public ::testing::Test {
 protected:
  ServerCallsTest() {
    options_.transport = TransportChoice::kTcp;
    NodeInfo node;
    node.id = NodeId(1);
    node.name = "server1";
    node.boot_id = 1;
    node.data_address = server_.address();
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1));
    views_.Install(*DhtView::Make(ViewVersion(1, 1), {node}, slots, false));
    calls_.Bind({NamespaceId(1), 1});
  }
  void Put(const std::string& key, const std::string& value) {
    Batch batch = calls_.MakeBatch(Op::kPut, Deadline::After(seconds(5)));
    batch.items.push_back(calls_.MakeItem(key, {}));
    batch.items[0].value = std::string_view(value);
    calls_.Run(&batch);
    ASSERT_TRUE(batch.items[0].status.ok()) << ToString(batch.items[0].status);
  }
  static Deadline Soon() { return Deadline::After(seconds(5)); }

  MemoryServer server_;
  ClientOptions options_;
  ViewCache views_;
  Router router_{options_, &views_, {}};
  ServerCalls calls_{options_, &router_};
};

TEST_F(ServerCallsTest, LengthsValuesAndRangesComeBackInOrder) {
  const std::string a = MakeValue("ns", "a", 1, 5000);
  const std::string b = MakeValue("ns", "b", 2, 70'000);
  Put("a", a);
  Put("b", b);

  const std::vector<KeyItem> keys = {{.key = "b"}, {.key = "none"}, {.key = "a"}};
  const auto lengths = calls_.Ask(std::span<const KeyItem>(keys), {}, Soon());
  EXPECT_EQ(*lengths[0], b.size());
  EXPECT_EQ(lengths[1].status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*lengths[2], a.size());

  std::string into_a(a.size(), '\0');
  std::string into_b(b.size(), '\0');
  const std::vector<GetItem> gets = {
      {.key = "b", .into = std::as_writable_bytes(std::span(into_b))},
      {.key = "a", .into = std::as_writable_bytes(std::span(into_a))}};
  const auto values = calls_.Ask(std::span<const GetItem>(gets), {}, Soon());
  EXPECT_EQ(*values[0], b.size());
  EXPECT_EQ(*values[1], a.size());
  EXPECT_EQ(into_a, a);
  EXPECT_EQ(into_b, b);

  std::string part(100, '\0');
  const std::vector<RangeItem> ranges = {
      {.key = "b", .offset = 66'000, .into = std::as_writable_bytes(std::span(part))}};
  const auto asked = calls_.Ask(std::span<const RangeItem>(ranges), {}, Soon());
  ASSERT_TRUE(asked[0].ok()) << ToString(asked[0].status());
  EXPECT_EQ(part, b.substr(66'000, 100));
}

TEST_F(ServerCallsTest, AWholeValueComesWithItsChecksum) {
  const std::string a = MakeValue("ns", "a", 1, 5000);
  Put("a", a);
  std::string value;
  uint64_t checksum = 0;
  const Result<uint64_t> length = calls_.AskWhole("a", {}, &value, &checksum);
  ASSERT_TRUE(length.ok()) << ToString(length.status());
  EXPECT_EQ(value, a);
  EXPECT_EQ(checksum, Checksum(AsBytes(a)));
  EXPECT_EQ(calls_.AskWhole("none", {}, &value, nullptr).status().code(), StatusCode::kNotFound);
}

TEST_F(ServerCallsTest, AKeyThatIsNoneFailsAlone) {
  Put("a", "1");
  const std::string long_key(600, 'k');
  const std::vector<KeyItem> keys = {{.key = ""}, {.key = "a"}, {.key = long_key}};
  const auto lengths = calls_.Ask(std::span<const KeyItem>(keys), {}, Soon());
  EXPECT_EQ(lengths[0].status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*lengths[1], 1u);
  EXPECT_EQ(lengths[2].status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ServerCallsTest, ACallThatMustNotTouchSaysSo) {
  GetOptions options;
  EXPECT_EQ(calls_.MakeBatch(Op::kGet, Soon(), &options).flags, 0);
  options.touch = false;
  EXPECT_EQ(calls_.MakeBatch(Op::kGet, Soon(), &options).flags, wire::kFlagNoTouch);
  EXPECT_EQ(calls_.MakeBatch(Op::kPut, Soon()).flags, 0);
}

TEST_F(ServerCallsTest, TheRouteDecidesTheSlot) {
  EXPECT_EQ(calls_.MakeItem("a", "r").slot, calls_.MakeItem("b", "r").slot);
  EXPECT_EQ(calls_.MakeItem("a", {}).slot, calls_.MakeItem("x", "a").slot);
}

TEST_F(ServerCallsTest, ADeadlineGrowsWithTheBytesUpToHalfAMinute) {
  options_.op_timeout = seconds(1);
  const auto within = [](Deadline deadline, Duration wanted) {
    const Duration left = deadline.Remaining();
    return left <= wanted && left > wanted - milliseconds(900);
  };
  EXPECT_TRUE(within(calls_.DeadlineFor({}, 0), seconds(1)));
  EXPECT_TRUE(within(calls_.DeadlineFor({}, 400'000'000), seconds(5)));
  EXPECT_TRUE(within(calls_.DeadlineFor({}, 400'000'000'000), seconds(30)));
  EXPECT_TRUE(within(calls_.DeadlineFor(seconds(90), 0), seconds(90)));
}

}  // namespace
}  // namespace ems::internal
