// What must hold: an expected reply fills the caller's memory however it is cut into pieces; any
// other is a whole line or a clear error, never bytes taken for something else.
#include "bench/sides/reply_socket.h"

#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/bench/sides/scripted_socket.h"

namespace ems::bench {
namespace {

using test::Room;
using test::ScriptedSocket;

TEST(ReplySocketTest, ExpectedReplyFillsTheValueAndLeavesTheNextOneAlone) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  script.Answer("$5\r\nhello\r\n$5\r\nworld\r\n+OK\r\n");
  std::string value(5, '?');
  EXPECT_EQ(socket.Read("$5\r\n", Room(&value)).value(), "");
  EXPECT_EQ(value, "hello");
  EXPECT_EQ(socket.Read("$5\r\n", Room(&value)).value(), "");
  EXPECT_EQ(value, "world");
  EXPECT_EQ(socket.Read("+OK\r\n", {}).value(), "");
}

TEST(ReplySocketTest, ReplyInPiecesOfOneByteIsTheSame) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  std::string value(5, '?');
  const Thread writer("test-writer", [&script] {
    for (const char c : std::string_view("$5\r\nhello\r\n$-1\r\n")) {
      script.Answer(std::string_view(&c, 1));
    }
  });
  EXPECT_EQ(socket.Read("$5\r\n", Room(&value)).value(), "");
  EXPECT_EQ(value, "hello");
  EXPECT_EQ(socket.Read("$5\r\n", Room(&value)).value(), "$-1");
}

TEST(ReplySocketTest, AnotherLineComesBackWholeAndTheConnectionGoesOn) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  std::string value(100, '?');
  script.Answer("-ERR something that is longer than the expected line\r\n");
  EXPECT_EQ(socket.Read("$100\r\n", Room(&value)).value(),
            "-ERR something that is longer than the expected line");
  script.Answer("$-1\r\n");
  EXPECT_EQ(socket.Read("$100\r\n", Room(&value)).value(), "$-1");
  script.Answer("-ERR no\r\n");
  EXPECT_EQ(socket.Read("+OK\r\n", {}).value(), "-ERR no");
}

TEST(ReplySocketTest, BytesBehindAnotherLineCloseTheConnection) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  std::string value(100, '?');
  script.Answer("$42\r\nand a value");
  EXPECT_EQ(socket.Read("$100\r\n", Room(&value)).value(), "$42");
  EXPECT_EQ(socket.Read("$100\r\n", Room(&value)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(socket.Send({}).code(), StatusCode::kUnavailable);
}

TEST(ReplySocketTest, WhatIsNoReplyIsAnError) {
  const std::string endless(2000, 'x');
  for (const std::string& text : {std::string("\r\n"), endless, std::string(500, 'x') + "yz"}) {
    ScriptedSocket script;
    ReplySocket socket = script.Take();
    std::string value(1500, '?');
    script.Answer(text);
    script.HangUp();
    const auto read = socket.Read("$1500\r\n", Room(&value));
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(Message(read.status()), "");
  }
}

TEST(ReplySocketTest, ValueThatGoesOnWhereItShouldEndIsAnError) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  std::string value(5, '?');
  script.Answer("$5\r\nhello!!");
  const auto read = socket.Read("$5\r\n", Room(&value));
  EXPECT_EQ(read.status().code(), StatusCode::kInternal);
}

TEST(ReplySocketTest, EndOfTheConnectionIsUnavailable) {
  ScriptedSocket script;
  ReplySocket socket = script.Take();
  std::string value(5, '?');
  script.Answer("$5\r\nhel");
  script.HangUp();
  EXPECT_EQ(socket.Read("$5\r\n", Room(&value)).status().code(), StatusCode::kUnavailable);
}

TEST(ReplySocketTest, NobodyThereIsAnError) {
  EXPECT_FALSE(ReplySocket::Connect("unix:/no/such/socket").ok());
  EXPECT_FALSE(ReplySocket::Connect("not an address").ok());
}

}  // namespace
}  // namespace ems::bench
