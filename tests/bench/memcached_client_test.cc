// What must hold: requests are meta commands, values arrive whole, and every other answer is an
// error that says what memcached said.
#include "bench/memcached_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/scripted_socket.h"

namespace ems::bench {
namespace {

using test::Room;
using test::ScriptedSocket;
using ::testing::HasSubstr;

TEST(MemcachedClientTest, GetAsksForTheKeyAndFillsTheValue) {
  ScriptedSocket script;
  MemcachedClient client(script.Take());
  script.Answer("VA 5\r\nhello\r\n");
  std::string value(5, '?');
  ASSERT_TRUE(client.Get("key", Room(&value)).ok());
  EXPECT_EQ(value, "hello");
  EXPECT_EQ(script.Asked(), "mg key v\r\n");
}

TEST(MemcachedClientTest, SetSendsKeyAndValue) {
  ScriptedSocket script;
  MemcachedClient client(script.Take());
  script.Answer("HD\r\n");
  ASSERT_TRUE(client.Set("k", AsBytes("bytes")).ok());
  EXPECT_EQ(script.Asked(), "ms k 5\r\nbytes\r\n");
}

TEST(MemcachedClientTest, MissAndOtherLengthAreToldApartAndTheClientGoesOnAfterAMiss) {
  ScriptedSocket script;
  MemcachedClient client(script.Take());
  std::string value(5, '?');
  script.Answer("EN\r\n");
  EXPECT_EQ(client.Get("k", Room(&value)).code(), StatusCode::kNotFound);
  script.Answer("VA 5\r\nhello\r\n");
  EXPECT_TRUE(client.Get("k", Room(&value)).ok());
  script.Answer("VA 6\r\nhello!\r\n");
  const Status longer = client.Get("k", Room(&value));
  EXPECT_EQ(longer.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Message(longer)), HasSubstr("6 bytes"));
}

TEST(MemcachedClientTest, AnswersToGetAreExplained) {
  EXPECT_EQ(ExplainMetaGet("EN").code(), StatusCode::kNotFound);
  EXPECT_EQ(ExplainMetaGet("VA 12").code(), StatusCode::kOutOfRange);
  EXPECT_EQ(ExplainMetaGet("VA 12 s12").code(), StatusCode::kOutOfRange);
  const Status wrong = ExplainMetaGet("CLIENT_ERROR bad command line format");
  EXPECT_EQ(wrong.code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(wrong)), HasSubstr("bad command line format"));
  EXPECT_THAT(std::string(Message(ExplainMetaGet("ERROR"))), HasSubstr("memcached: ERROR"));
  for (const char* nonsense : {"", "VA", "VA ", "VA x", "VA -1", "HD", "END", "VALUE k 0 5"}) {
    const Status status = ExplainMetaGet(nonsense);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << nonsense;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("no meta reply")) << nonsense;
  }
}

TEST(MemcachedClientTest, AnswersToSetAreExplained) {
  EXPECT_EQ(ExplainMetaSet("SERVER_ERROR object too large for cache").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(ExplainMetaSet("SERVER_ERROR out of memory storing object").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(ExplainMetaSet("CLIENT_ERROR bad data chunk").code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(ExplainMetaSet("NS"))), HasSubstr("not stored"));
  EXPECT_THAT(std::string(Message(ExplainMetaSet("STORED"))), HasSubstr("no meta reply"));
}

}  // namespace
}  // namespace ems::bench
