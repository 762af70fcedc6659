// What must hold: sends are short while small requests come and for a while after, and long when
// only large ones do; transfers take turns in the order in which they asked, and what has come to
// another socket during a turn is served before the next one.
#include "fabric/net/turns.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/socket_pair.h"

namespace ems::fabric {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(TurnsTest, SmallRequestsShortenTheSendsOfTheNextWhile) {
  Turns turns;
  EXPECT_EQ(turns.BytesOfSend(kStart), Turns::kLongBytes);
  turns.OnServed(kStart, Turns::kSmallBytes);
  EXPECT_EQ(turns.BytesOfSend(kStart), Turns::kShortBytes);
  EXPECT_EQ(turns.BytesOfSend(kStart + Turns::kQuiet - Duration(1)), Turns::kShortBytes);
  EXPECT_EQ(turns.BytesOfSend(kStart + Turns::kQuiet), Turns::kLongBytes);
}

TEST(TurnsTest, LargeRequestsDoNot) {
  Turns turns;
  turns.OnServed(kStart, Turns::kSmallBytes + 1);
  EXPECT_EQ(turns.BytesOfSend(kStart), Turns::kLongBytes);
}

// Takes turns `letters` times and notes each; its first one sends a byte where there is a peer.
asio::awaitable<void> Transfer(testing::SocketPair* pair, char letter, bool sends,
                               std::string* order) {
  asio::steady_timer own(pair->context());
  for (int i = 0; i < 3; ++i) {
    co_await pair->turns()->Next(&own);
    *order += letter;
    const bool sent = !sends || i > 0 || pair->peer().Send("?");
    EXPECT_TRUE(sent);
  }
}

// Waits for a byte and notes it.
asio::awaitable<void> Serve(StreamSocket* socket, std::string* order) {
  char byte = 0;
  co_await socket->async_read_some(asio::buffer(&byte, 1), asio::use_awaitable);
  *order += byte;
}

TEST(TurnsTest, WhatHasComeDuringATurnIsServedBeforeTheNext) {
  testing::SocketPair pair;
  std::string order;
  StreamSocket socket = pair.TakeSocket();
  pair.turns()->OnServed(Clock::System().Now(), 1);
  const auto serve = [&]() -> asio::awaitable<bool> {
    co_await Serve(&socket, &order);
    asio::steady_timer own(pair.context());
    for (int i = 0; i < 9; ++i) co_await pair.turns()->Next(&own);  // until all have had theirs
    co_return true;
  };
  for (const char letter : {'a', 'b', 'c'})
    asio::co_spawn(pair.context(), Transfer(&pair, letter, letter == 'a', &order), asio::detached);
  EXPECT_EQ(pair.Await(serve()), true);
  EXPECT_EQ(order, "a?bcabcabc");
}

// Else they would get a part of a transfer for each look, however long a look takes.
TEST(TurnsTest, WhereRequestsTakeLongSeveralTransfersHaveTheirTurns) {
  testing::SocketPair pair(std::chrono::nanoseconds(1));
  std::string order;
  StreamSocket socket = pair.TakeSocket();
  pair.turns()->OnServed(Clock::System().Now(), 1);
  const auto serve = [&]() -> asio::awaitable<bool> {
    co_await Serve(&socket, &order);
    co_return true;
  };
  for (const char letter : {'a', 'b', 'c'})
    asio::co_spawn(pair.context(), Transfer(&pair, letter, letter == 'a', &order), asio::detached);
  EXPECT_EQ(pair.Await(serve()), true);
  EXPECT_EQ(order.substr(0, 4), "abc?");
}

TEST(TurnsTest, WhoseWaitIsCancelledHasNoPlaceInTheQueueAnyMore) {
  testing::SocketPair pair;
  std::string order;
  asio::steady_timer own(pair.context());
  pair.turns()->OnServed(Clock::System().Now(), 1);
  const auto cancelled = [&]() -> asio::awaitable<void> {
    co_await pair.turns()->Next(&own);
    order += 'x';
  };
  const auto cancel = [&]() -> asio::awaitable<bool> {
    own.cancel();
    co_await Transfer(&pair, 'a', false, &order);
    co_return true;
  };
  asio::co_spawn(pair.context(), cancelled(), asio::detached);
  EXPECT_EQ(pair.Await(cancel()), true);
  EXPECT_EQ(order, "xaaa");
}

}  // namespace
}  // namespace ems::fabric
