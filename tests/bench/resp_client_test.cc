// What must hold: requests are RESP, values arrive whole, and every other answer is an error that
// says what redis said.
#include "bench/resp_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bench/scripted_socket.h"

namespace ems::bench {
namespace {

using test::Room;
using test::ScriptedSocket;
using ::testing::HasSubstr;

TEST(RespClientTest, GetAsksForTheKeyAndFillsTheValue) {
  ScriptedSocket script;
  RespClient client(script.Take());
  script.Answer("$5\r\nhello\r\n");
  std::string value(5, '?');
  ASSERT_TRUE(client.Get("the key", Room(&value)).ok());
  EXPECT_EQ(value, "hello");
  EXPECT_EQ(script.Asked(), "*2\r\n$3\r\nGET\r\n$7\r\nthe key\r\n");
}

TEST(RespClientTest, SetSendsKeyAndValue) {
  ScriptedSocket script;
  RespClient client(script.Take());
  script.Answer("+OK\r\n");
  ASSERT_TRUE(client.Set("k", AsBytes("bytes")).ok());
  EXPECT_EQ(script.Asked(), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nbytes\r\n");
}

TEST(RespClientTest, MissAndOtherLengthAreToldApartAndTheClientGoesOnAfterAMiss) {
  ScriptedSocket script;
  RespClient client(script.Take());
  std::string value(5, '?');
  script.Answer("$-1\r\n");
  EXPECT_EQ(client.Get("k", Room(&value)).code(), StatusCode::kNotFound);
  script.Answer("$5\r\nhello\r\n");
  EXPECT_TRUE(client.Get("k", Room(&value)).ok());
  script.Answer("$6\r\nhello!\r\n");
  const Status longer = client.Get("k", Room(&value));
  EXPECT_EQ(longer.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Message(longer)), HasSubstr("6 bytes"));
}

TEST(RespClientTest, AnswersToGetAreExplained) {
  EXPECT_EQ(ExplainRespGet("$-1").code(), StatusCode::kNotFound);
  EXPECT_EQ(ExplainRespGet("$12").code(), StatusCode::kOutOfRange);
  const Status wrong = ExplainRespGet("-WRONGTYPE Operation against a key");
  EXPECT_EQ(wrong.code(), StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(wrong)), HasSubstr("WRONGTYPE Operation"));
  for (const char* nonsense : {"", "$", "$x", "$-2", "$1x", "+OK", ":3", "*2", "HTTP/1.1 400"}) {
    const Status status = ExplainRespGet(nonsense);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << nonsense;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("no RESP2")) << nonsense;
  }
}

TEST(RespClientTest, AnswersToSetAreExplained) {
  const Status full = ExplainRespSet("-OOM command not allowed when used memory > 'maxmemory'.");
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Message(full)), HasSubstr("maxmemory"));
  EXPECT_EQ(ExplainRespSet("-ERR Protocol error").code(), StatusCode::kInternal);
  for (const char* nonsense : {"+QUEUED", "$-1", "HD"}) {
    EXPECT_THAT(std::string(Message(ExplainRespSet(nonsense))), HasSubstr("no RESP2"));
  }
}

}  // namespace
}  // namespace ems::bench
