// What must hold: a ring comes in only behind a greeting that fits; strangers and slow peers are
// turned away and hold up nobody.
#include "pdc/rpc/ring_acceptor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "common/guarded.h"
#include "fabric/emulated/ring_receiver.h"
#include "fabric/net/fd_message.h"
#include "pdc/rpc/ring_greeting.h"
#include "tests/support/eventually.h"

namespace ems::pdc {
namespace {

using fabric::Fd;
using fabric::RingReceiver;
using std::chrono::seconds;
using testing::Eventually;

constexpr fabric::RingOptions kSmall{.entries = 2, .entry_bytes = 4 * kKiB};

TEST(RingGreetingTest, OnlyOursForThisProcessFit) {
  EXPECT_EQ(CheckGreeting({.incarnation = 5, .session = 1}, 5), OkStatus());
  EXPECT_EQ(CheckGreeting({.incarnation = 4, .session = 1}, 5).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckGreeting({.incarnation = 5, .session = 0}, 5).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckGreeting({.magic = 1, .incarnation = 5, .session = 1}, 5).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckGreeting({.incarnation = 5, .session = 1, .reserved = 1}, 5).code(),
            StatusCode::kInvalidArgument);
}

class RingAcceptorTest : public ::testing::Test {
 protected:
  using Rings = std::vector<std::pair<uint64_t, std::unique_ptr<fabric::RingSender>>>;

  void SetUp() override {
    auto started = RingAcceptor::Start(
        {.path = path_, .incarnation = 5, .tick_every = std::chrono::milliseconds(1)},
        {.attach =
             [this](uint64_t session, std::unique_ptr<fabric::RingSender> ring) {
               auto rings = rings_.Lock();
               if (session == 13) return Error(StatusCode::kResourceExhausted, "no more");
               rings->emplace_back(session, std::move(ring));
               return OkStatus();
             },
         .tick = [this] { ticks_.fetch_add(1); }});
    ASSERT_TRUE(started.ok()) << started.status();
    acceptor_ = *std::move(started);
  }
  Fd Dial() const {
    auto socket = fabric::Connect({.host = {}, .port = 0, .unix_path = path_}, seconds(5));
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }
  static void Send(const Fd& socket, const RingGreeting& greeting, size_t bytes = 32) {
    EXPECT_EQ(fabric::SendMessageTo(socket.get(),
                                    std::as_bytes(std::span(&greeting, 1)).first(bytes), {}),
              OkStatus());
  }
  std::unique_ptr<RingReceiver> Offer(const RingGreeting& greeting) const {
    Fd socket = Dial();
    Send(socket, greeting);
    auto ring = RingReceiver::Offer(std::move(socket), kSmall);
    EXPECT_TRUE(ring.ok()) << ring.status();
    return *std::move(ring);
  }
  // It may be turned away before it has offered anything.
  bool IsTurnedAway(const RingGreeting& greeting) const {
    Fd socket = Dial();
    Send(socket, greeting);
    const auto ring = RingReceiver::Offer(std::move(socket), kSmall);
    if (!ring.ok()) return ring.status().code() == StatusCode::kUnavailable;
    return Eventually([&] { return (*ring)->peer_is_gone(); });
  }
  size_t rings() {
    auto rings = rings_.Lock();
    return rings->size();
  }
  static bool IsClosed(const Fd& socket) {
    pollfd fd{socket.get(), POLLIN | POLLRDHUP, 0};
    return ::poll(&fd, 1, 0) > 0;
  }

  const std::string path_ = fmt::format("/tmp/ems-acceptor-{}", ::getpid());
  Guarded<Rings> rings_;
  std::atomic<int> ticks_{0};
  std::unique_ptr<RingAcceptor> acceptor_;  // goes first
};

TEST_F(RingAcceptorTest, ARingComesInAndWorks) {
  const auto receiver = Offer({.incarnation = 5, .session = 21});
  ASSERT_TRUE(Eventually([&] { return rings() == 1; }));
  std::array<std::byte, 4> into{};
  const auto posted = receiver->Post(1, into);
  ASSERT_TRUE(posted.ok()) << posted.status();
  auto rings = rings_.Lock();
  EXPECT_EQ(rings->at(0).first, 21U);
  fabric::RingSender* const sender = rings->at(0).second.get();
  rings.Unlock();
  const Thread thread("send",
                      [&] { EXPECT_EQ(sender->Send(1, AsBytes("abcd"), seconds(5)), OkStatus()); });
  ASSERT_TRUE((*posted)->Wait(seconds(5)).ok());
  EXPECT_EQ(AsText(into), "abcd");
}

TEST_F(RingAcceptorTest, GreetingsThatDoNotFitAreTurnedAway) {
  EXPECT_TRUE(IsTurnedAway({.incarnation = 6, .session = 21}));
  EXPECT_TRUE(IsTurnedAway({.incarnation = 5, .session = 0}));
  EXPECT_TRUE(IsTurnedAway({.incarnation = 5, .session = 13}));
  const Fd stranger = Dial();
  Send(stranger, {.magic = 1, .incarnation = 5, .session = 1});
  EXPECT_TRUE(Eventually([&] { return IsClosed(stranger); }));
  EXPECT_EQ(rings(), 0U);
}

TEST_F(RingAcceptorTest, AGreetingWithDescriptorsIsTurnedAway) {
  const Fd socket = Dial();
  const RingGreeting greeting{.incarnation = 5, .session = 1};
  const std::array fds = {socket.get()};
  ASSERT_EQ(fabric::SendMessageTo(socket.get(), std::as_bytes(std::span(&greeting, 1)), fds),
            OkStatus());
  EXPECT_TRUE(Eventually([&] { return IsClosed(socket); }));
}

TEST_F(RingAcceptorTest, SlowPeersHoldUpNobody) {
  const Fd silent = Dial(), half = Dial(), greeted = Dial();
  Send(half, {.incarnation = 5, .session = 1}, 10);
  Send(greeted, {.incarnation = 5, .session = 2});
  const auto quick = Offer({.incarnation = 5, .session = 3});
  ASSERT_TRUE(Eventually([&] { return rings() == 1; }));
  EXPECT_FALSE(IsClosed(silent));
  // Their time ends.
  EXPECT_TRUE(Eventually([&] { return IsClosed(silent) && IsClosed(half) && IsClosed(greeted); },
                         seconds(20)));
  EXPECT_FALSE(quick->peer_is_gone());
}

TEST_F(RingAcceptorTest, PeersBeyondTheBoundAreTurnedAway) {
  std::vector<Fd> silent;
  for (size_t i = 0; i <= RingAcceptor::kPendingMax; ++i) silent.push_back(Dial());
  EXPECT_TRUE(Eventually([&] { return IsClosed(silent.back()); }, seconds(20)));
}

TEST_F(RingAcceptorTest, Ticks) {
  EXPECT_TRUE(Eventually([&] { return ticks_.load() > 2; }));
}

TEST_F(RingAcceptorTest, ASecondOneOnTheSameSocketIsRefused) {
  EXPECT_EQ(RingAcceptor::Start({.path = path_, .incarnation = 6}, {}).status().code(),
            StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace ems::pdc
