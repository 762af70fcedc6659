// What must hold: requests are RESP or meta commands, values arrive whole, and every other answer
// is an error that says what the peer said.
#include "bench/sides/peer_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/sides/scripted_socket.h"

namespace ems::bench {
namespace {

using test::Room;
using test::ScriptedSocket;
using ::testing::HasSubstr;

constexpr PeerKind kRedis = PeerKind::kRedis, kMemcached = PeerKind::kMemcached;

// The same exchange with each peer.
struct Wire {
  PeerKind kind;
  std::string_view get, value, longer, miss, set, stored;
};
constexpr Wire kWires[] = {
    {kRedis, "*2\r\n$3\r\nGET\r\n$7\r\nthe-key\r\n", "$5\r\nhello\r\n", "$6\r\nhello!\r\n",
     "$-1\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nbytes\r\n", "+OK\r\n"},
    {kMemcached, "mg the-key v\r\n", "VA 5\r\nhello\r\n", "VA 6\r\nhello!\r\n", "EN\r\n",
     "ms k 5\r\nbytes\r\n", "HD\r\n"}};

class PeerClientTest : public ::testing::TestWithParam<Wire> {
 protected:
  ScriptedSocket script_;
  PeerClient client_{GetParam().kind, script_.Take()};
  std::string value_ = std::string(5, '?');
};

TEST_P(PeerClientTest, GetAsksForTheKeyAndFillsTheValue) {
  script_.Answer(GetParam().value);
  ASSERT_TRUE(client_.Get("the-key", Room(&value_)).ok());
  EXPECT_EQ(value_, "hello");
  EXPECT_EQ(script_.Asked(), GetParam().get);
}

TEST_P(PeerClientTest, SetSendsKeyAndValue) {
  script_.Answer(GetParam().stored);
  ASSERT_TRUE(client_.Set("k", AsBytes("bytes")).ok());
  EXPECT_EQ(script_.Asked(), GetParam().set);
}

TEST_P(PeerClientTest, MissAndOtherLengthAreToldApartAndTheClientGoesOnAfterAMiss) {
  script_.Answer(GetParam().miss);
  EXPECT_EQ(client_.Get("k", Room(&value_)).code(), StatusCode::kNotFound);
  script_.Answer(GetParam().value);
  EXPECT_TRUE(client_.Get("k", Room(&value_)).ok());
  script_.Answer(GetParam().longer);
  const Status longer = client_.Get("k", Room(&value_));
  EXPECT_EQ(longer.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Message(longer)), HasSubstr("6 bytes"));
}

TEST_P(PeerClientTest, NobodyThereIsAnError) {
  EXPECT_FALSE(PeerClient::Connect(GetParam().kind, "unix:/no/such/socket").ok());
}

INSTANTIATE_TEST_SUITE_P(Peers, PeerClientTest, ::testing::ValuesIn(kWires),
                         [](const auto& wire) { return std::string(PeerName(wire.param.kind)); });

TEST(PeerAnswerTest, AnswersToGetAreExplained) {
  EXPECT_EQ(ExplainGet(kRedis, "$-1").code(), StatusCode::kNotFound);
  EXPECT_EQ(ExplainGet(kRedis, "$12").code(), StatusCode::kOutOfRange);
  EXPECT_EQ(ExplainGet(kMemcached, "EN").code(), StatusCode::kNotFound);
  EXPECT_EQ(ExplainGet(kMemcached, "VA 12").code(), StatusCode::kOutOfRange);
  EXPECT_EQ(ExplainGet(kMemcached, "VA 12 s12").code(), StatusCode::kOutOfRange);
  for (const auto& [kind, error] : {std::pair(kRedis, "-WRONGTYPE Operation against a key"),
                                    std::pair(kMemcached, "CLIENT_ERROR Operation line format")}) {
    const Status wrong = ExplainGet(kind, error);
    EXPECT_EQ(wrong.code(), StatusCode::kInternal);
    EXPECT_THAT(std::string(Message(wrong)), HasSubstr("Operation"));
  }
  EXPECT_THAT(std::string(Message(ExplainGet(kMemcached, "ERROR"))), HasSubstr("memcached: ERROR"));
  for (const char* nonsense : {"", "$", "$x", "$-2", "$1x", "+OK", ":3", "*2", "HTTP/1.1 400"}) {
    const Status status = ExplainGet(kRedis, nonsense);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << nonsense;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("no RESP2")) << nonsense;
  }
  for (const char* nonsense : {"", "VA", "VA ", "VA x", "VA -1", "HD", "END", "VALUE k 0 5"}) {
    const Status status = ExplainGet(kMemcached, nonsense);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << nonsense;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("no meta reply")) << nonsense;
  }
}

TEST(PeerAnswerTest, AnswersToSetAreExplained) {
  const Status full =
      ExplainSet(kRedis, "-OOM command not allowed when used memory > 'maxmemory'.");
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Message(full)), HasSubstr("maxmemory"));
  EXPECT_EQ(ExplainSet(kRedis, "-ERR Protocol error").code(), StatusCode::kInternal);
  for (const char* error :
       {"SERVER_ERROR object too large for cache", "SERVER_ERROR out of memory storing object"})
    EXPECT_EQ(ExplainSet(kMemcached, error).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ExplainSet(kMemcached, "CLIENT_ERROR bad data chunk").code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(ExplainSet(kMemcached, "NS"))), HasSubstr("not stored"));
  EXPECT_THAT(std::string(Message(ExplainSet(kMemcached, "STORED"))), HasSubstr("no meta reply"));
  for (const char* nonsense : {"+QUEUED", "$-1", "HD"})
    EXPECT_THAT(std::string(Message(ExplainSet(kRedis, nonsense))), HasSubstr("no RESP2"));
}

TEST(PeerKindTest, KindsHaveNames) {
  EXPECT_EQ(PeerName(kRedis), "redis");
  EXPECT_EQ(PeerName(kMemcached), "memcached");
}

}  // namespace
}  // namespace ems::bench
