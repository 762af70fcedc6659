// What must hold: bytes come in order through the read-ahead buffer and past it, exactly as many as
// were asked for; answers of many parts go out whole; the end of the stream ends every read.
#include "fabric/rpc/internal/frame_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "tests/support/socket_pair.h"

namespace ems::fabric::internal {
namespace {

using testing::SocketPair;

struct Rig {
  Rig() : stream(pair.TakeSocket(), pair.turns()) {}
  std::string ReadExact(size_t bytes) {
    std::string text(bytes, '?');
    const auto read = pair.Await(stream.ReadExact(std::as_writable_bytes(std::span(text))));
    return read.value_or(false) ? text : "failed";
  }
  SocketPair pair;
  FrameStream stream;
};

void AskForRoom(int socket) {
  const int room = 208 * 1024;  // doubled, and as much as anybody may ask for
  ASSERT_EQ(::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
}

// Nobody reads meanwhile.
void SendAtOnce(SocketPair* pair, const std::string& bytes) {
  const int peer = pair->peer().fd();
  AskForRoom(peer);
  ASSERT_EQ(::send(peer, bytes.data(), bytes.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(bytes.size()));
}

TEST(FrameStreamTest, WhatWasReadAheadComesFirstAndThenTheRest) {
  Rig rig;
  ASSERT_TRUE(rig.pair.peer().Send("headerkey and value"));
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadMore()), true);
  EXPECT_EQ(AsText(rig.stream.TakeAhead(6)), "header");
  EXPECT_EQ(AsText(rig.stream.TakeAhead(3)), "key");
  ASSERT_TRUE(rig.pair.peer().Send(" of 2"));
  EXPECT_EQ(rig.ReadExact(15), " and value of 2");
  EXPECT_TRUE(rig.stream.ahead().empty());
}

TEST(FrameStreamTest, AHeaderAtTheEndOfTheBufferMovesToItsBeginning) {
  Rig rig;
  const std::string filler(FrameStream::kAheadBytes - 4, 'x');
  ASSERT_TRUE(rig.pair.peer().Send(filler + "head"));
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadMore()), true);
  (void)rig.stream.TakeAhead(filler.size());
  ASSERT_TRUE(rig.pair.peer().Send("er"));
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadMore()), true);
  EXPECT_EQ(AsText(rig.stream.ahead()), "header");
}

TEST(FrameStreamTest, ValueAndTrailerAreReadAtOnceButNoByteMore) {
  Rig rig;
  ASSERT_TRUE(rig.pair.peer().Send("valuetrailernext"));
  std::string value(5, '?'), trailer(7, '?');
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadSome(std::as_writable_bytes(std::span(value)),
                                               std::as_writable_bytes(std::span(trailer)))),
            12U);
  EXPECT_EQ(value + trailer, "valuetrailer");
  EXPECT_EQ(rig.ReadExact(4), "next");
}

TEST(FrameStreamTest, AppendsAndSkips) {
  Rig rig;
  Thread sender("sender", [&] {
    EXPECT_TRUE(rig.pair.peer().Send(std::string(200'000, 'a') + std::string(300'000, 'b') + "c"));
  });
  std::vector<std::byte> table = {std::byte{'_'}};
  EXPECT_EQ(rig.pair.Await(rig.stream.Append(&table, 200'000)), true);
  EXPECT_EQ(AsText(table), "_" + std::string(200'000, 'a'));
  EXPECT_EQ(rig.pair.Await(rig.stream.Skip(300'000)), true);
  EXPECT_EQ(rig.ReadExact(1), "c");
}

TEST(FrameStreamTest, ManyPartsGoOutWholeToASlowReader) {
  Rig rig;
  std::string all;
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    texts.push_back(
        std::string(static_cast<size_t>(i % 7) * 5000, static_cast<char>('a' + i % 26)));
    all += texts.back();
  }
  std::vector<ConstBytes> parts;
  parts.reserve(texts.size());
  for (const std::string& text : texts) parts.push_back(AsBytes(text));
  std::string received;
  Thread reader("reader",
                [&] { received = rig.pair.peer().Receive(all.size()).value_or("too slow"); });
  EXPECT_EQ(rig.pair.Await(rig.stream.Write(parts)), true);
  reader.Join();
  EXPECT_EQ(received, all);
}

TEST(FrameStreamTest, TheEndOfTheStreamEndsEveryRead) {
  Rig rig;
  EXPECT_FALSE(rig.stream.PeerHungUp());
  ASSERT_TRUE(rig.pair.peer().Send("abc"));
  rig.pair.peer().HalfClose();
  EXPECT_TRUE(rig.stream.PeerHungUp());
  EXPECT_EQ(rig.ReadExact(4), "failed");
  std::vector<std::byte> table;
  EXPECT_EQ(rig.pair.Await(rig.stream.Append(&table, 1)), false);
  EXPECT_EQ(rig.pair.Await(rig.stream.Skip(1)), false);
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadMore()), false);
  rig.pair.peer().Close();
  const ConstBytes answer = AsBytes("late");
  EXPECT_EQ(rig.pair.Await(rig.stream.Write(std::span(&answer, 1))), false);
  rig.stream.Close();
  EXPECT_TRUE(rig.stream.PeerHungUp());
}

TEST(FrameStreamTest, AwaitsWhatIsThereAndTheEndOfTheStream) {
  Rig rig;
  ASSERT_TRUE(rig.pair.peer().Send("headervalue"));
  EXPECT_EQ(rig.pair.Await(rig.stream.ReadMore()), true);
  (void)rig.stream.TakeAhead(6);
  EXPECT_EQ(rig.pair.Await(rig.stream.AwaitBytes(5)), true) << "read ahead";
  ASSERT_TRUE(rig.pair.peer().Send("next"));
  EXPECT_EQ(rig.pair.Await(rig.stream.AwaitBytes(9)), true) << "read ahead, and not yet read";
  EXPECT_EQ(rig.ReadExact(9), "valuenext");
  EXPECT_EQ(rig.stream.passed_bytes(), 15U);
  Thread sender("sender", [&] { EXPECT_TRUE(rig.pair.peer().Send("late")); });
  EXPECT_EQ(rig.pair.Await(rig.stream.AwaitBytes(4)), true) << "it is waited for";
  sender.Join();
  rig.pair.peer().HalfClose();
  EXPECT_EQ(rig.pair.Await(rig.stream.AwaitBytes(4)), true) << "sent before the end";
  EXPECT_EQ(rig.pair.Await(rig.stream.AwaitBytes(5)), false);
  EXPECT_EQ(rig.ReadExact(4), "late");
}

TEST(FrameStreamTest, BetweenManySmallReadsOthersHaveTheirTurn) {
  SocketPair pair;
  FrameStream stream(pair.TakeSocket(), pair.turns());
  SendAtOnce(&pair, std::string(1000, 'v'));
  const auto transfer = [&]() -> asio::awaitable<bool> {
    bool turn = false;
    asio::post(pair.context(), [&turn] { turn = true; });
    std::byte byte{};
    for (int i = 0; i < 1000; ++i)
      if (!co_await stream.ReadExact(std::span(&byte, 1))) co_return false;
    const bool others_had_it = turn;
    if (!turn) co_await asio::post(pair.context(), asio::use_awaitable);
    co_return others_had_it;
  };
  EXPECT_EQ(pair.Await(transfer()), true);
}

// Of a transfer, so many bytes had passed when others had their first turn after some had; 0: it
// ended before.
uint64_t PassedAtOthersTurn(SocketPair* pair, FrameStream* stream, asio::awaitable<bool> transfer) {
  const uint64_t before = stream->passed_bytes();
  uint64_t seen = 0;
  bool done = false, others_done = false;
  const auto others = [&]() -> asio::awaitable<void> {
    asio::steady_timer own(pair->context());
    while (!done) {
      co_await pair->turns()->Next(&own);
      if (!done && seen == 0) seen = stream->passed_bytes() - before;
    }
    others_done = true;
  };
  const auto both = [&]() -> asio::awaitable<bool> {
    const bool good = co_await std::move(transfer);
    done = true;
    while (!others_done) co_await asio::post(pair->context(), asio::use_awaitable);
    co_return good;
  };
  asio::co_spawn(pair->context(), others(), asio::detached);
  EXPECT_EQ(pair->Await(both()), true);
  return seen;
}

// The socket takes and has all of it, so that nothing but the end of a turn lets others run.
TEST(FrameStreamTest, InTheMiddleOfManyBytesOthersHaveTheirTurn) {
  SocketPair pair;
  FrameStream stream(pair.TakeSocket(), pair.turns());
  AskForRoom(stream.socket().native_handle());
  std::string bytes(FrameStream::kTurnBytes + 1000, 'v');
  const ConstBytes part = AsBytes(bytes);
  pair.turns()->OnServed(Clock::System().Now(), Turns::kSmallBytes);
  EXPECT_EQ(PassedAtOthersTurn(&pair, &stream, stream.Write(std::span(&part, 1))),
            FrameStream::kTurnBytes);
  SendAtOnce(&pair, bytes);
  EXPECT_EQ(PassedAtOthersTurn(&pair, &stream,
                               stream.ReadExact(std::as_writable_bytes(std::span(bytes)))),
            bytes.size());
}

TEST(FrameStreamTest, WhoAsksForLittleWaitsForAShortSend) {
  SocketPair pair;
  FrameStream stream(pair.TakeSocket(), pair.turns());
  AskForRoom(stream.socket().native_handle());
  const std::string bytes(2 * Turns::kShortBytes + 1, 'v');
  const ConstBytes part = AsBytes(bytes);
  EXPECT_EQ(PassedAtOthersTurn(&pair, &stream, stream.Write(std::span(&part, 1))), 0U)
      << "one long send";
  ASSERT_TRUE(pair.peer().Receive(bytes.size()));
  pair.turns()->OnServed(Clock::System().Now(), Turns::kSmallBytes);
  EXPECT_EQ(PassedAtOthersTurn(&pair, &stream, stream.Write(std::span(&part, 1))),
            Turns::kShortBytes);
}

// What waits for its turn is not slow.
TEST(FrameStreamTest, TellsHowLongItHasWaitedForTurns) {
  SocketPair pair;
  FrameStream stream(pair.TakeSocket(), pair.turns());
  EXPECT_EQ(stream.waited(Clock::System().Now()), Duration::zero());
  asio::co_spawn(pair.context(), stream.Yield(), asio::detached);
  pair.context().poll_one();  // to its wait
  const TimePoint now = Clock::System().Now();
  EXPECT_GE(stream.waited(now + std::chrono::hours(1)), std::chrono::hours(1));
  pair.context().run();
  EXPECT_LT(stream.waited(now + std::chrono::hours(1)), std::chrono::hours(1));
}

// Who waits for a turn has it before a transfer that has waited for its socket meanwhile.
TEST(FrameStreamTest, WhileSmallRequestsComeATransferGoesOnBehindThoseThatWait) {
  for (const bool write : {true, false}) {
    SocketPair pair;
    FrameStream stream(pair.TakeSocket(), pair.turns());
    AskForRoom(stream.socket().native_handle());
    pair.turns()->OnServed(Clock::System().Now(), Turns::kSmallBytes);
    std::string bytes(600 * kKiB, 'v');
    const auto other = [&]() -> asio::awaitable<bool> {
      asio::steady_timer own(pair.context());
      uint64_t passed = 0;
      for (int idle = 0; idle < 3; ++idle) {  // until the transfer waits for its socket
        co_await pair.turns()->Next(&own);
        if (std::exchange(passed, stream.passed_bytes()) != stream.passed_bytes()) idle = 0;
      }
      if (write) {
        EXPECT_TRUE(pair.peer().Receive(passed).has_value());
      } else {
        SendAtOnce(&pair, bytes.substr(0, 100 * kKiB));
      }
      co_await pair.turns()->Next(&own);
      co_return stream.passed_bytes() == passed;
    };
    const auto transfer = [&]() -> asio::awaitable<void> {
      const ConstBytes part = AsBytes(bytes);
      const MutableBytes into = std::as_writable_bytes(std::span(bytes));
      const bool moved = write ? co_await stream.Write(std::span(&part, 1))
                               : co_await stream.ReadSome(into, {}) > 0;
      EXPECT_TRUE(moved);
    };
    bool ended = false;
    asio::co_spawn(pair.context(), transfer(),
                   [&ended](const std::exception_ptr&) { ended = true; });
    EXPECT_EQ(pair.Await(other()), true) << (write ? "write" : "read");
    while (!ended && pair.context().run_one_for(std::chrono::seconds(10)) > 0) {
    }
    EXPECT_TRUE(ended);
  }
}

}  // namespace
}  // namespace ems::fabric::internal
