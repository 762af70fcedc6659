// What must hold: a request that took long, or failed here, is one line that names it without its
// key; others are none.
#include "mp_server/slow_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/logging.h"
#include "mp_server/store/tiered_store.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using wire::Op;
using wire::WireStatus;
using namespace std::chrono_literals;

class SlowRequestsTest : public ::testing::Test {
 protected:
  SlowRequestsTest() {
    NamespaceTable table;
    table.version = 1;
    NamespaceInfo info;
    info.ref = {NamespaceId(1), 1};
    info.name = "kv";
    table.by_id[info.ref.id] = info;
    store_.SetNamespaces(table, 1.0);
    request_.op = Op::kGet;
    request_.request_id = 0xab12;
    request_.namespace_id = 1;
    request_.namespace_generation = 1;
  }
  void SetUp() override { ASSERT_TRUE(log::Init("info", "json").ok()); }
  std::string Logged(const SlowRequests& slow, const fabric::Served& served) {
    ::testing::internal::CaptureStderr();
    slow.OnServed(request_, served);
    return ::testing::internal::GetCapturedStderr();
  }

  SegmentPool pool_{SmallPool(4 * kMiB)};
  ObjectStore dram_{ObjectStore::Options{.pool = &pool_}};
  TieredStore store_{&dram_, nullptr};
  wire::FrameHeader request_;
};

TEST_F(SlowRequestsTest, ASlowOneIsNamedWithoutItsKey) {
  const SlowRequests slow(&store_, 100ms);
  EXPECT_THAT(Logged(slow, {.took = 99ms, .key = "secret"}), IsEmpty());
  const std::string text = Logged(slow, {.took = 100ms,
                                         .waited = 60ms,
                                         .sending = 5ms,
                                         .status = WireStatus::kMiss,
                                         .answer_bytes = 7,
                                         .key = "secret"});
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json["message"], "slow request");
  EXPECT_EQ(json["op"], "Get");
  EXPECT_EQ(json["namespace"], "kv");
  EXPECT_EQ(json["request"], "0000ab12");
  EXPECT_EQ(json["items"], 1);
  EXPECT_EQ(json["bytes_out"], 7);
  EXPECT_EQ(json["ms"], "100.0");
  EXPECT_EQ(json["waited_ms"], "60.0");
  EXPECT_EQ(json["status"], std::string(wire::StatusName(WireStatus::kMiss)));
}

TEST_F(SlowRequestsTest, AFailureOfThisServerIsSaidHoweverQuickItWas) {
  const SlowRequests off(&store_, Duration::zero());
  EXPECT_THAT(Logged(off, {.took = 1h}), IsEmpty());
  EXPECT_THAT(Logged(off, {.status = WireStatus::kWrongOwner}), IsEmpty());
  EXPECT_THAT(Logged(off, {.status = WireStatus::kNotDurable}), HasSubstr("failed request"));
}

TEST_F(SlowRequestsTest, AnUnknownNamespaceIsItsNumber) {
  request_.namespace_id = 9;
  EXPECT_THAT(Logged(SlowRequests(&store_, 1ms), {.took = 1s}), HasSubstr("\"namespace\":\"9\""));
}

}  // namespace
}  // namespace ems::server
