#include "mp_server/kv_events/event_sockets.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "tests/mp_server/kv_events/zmq_peer.h"
#include "tests/support/eventually.h"

namespace ems::kv_events {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kAnyPort[] = "127.0.0.1:0";

std::unique_ptr<EventSockets> Open() {
  auto opened = EventSockets::Open({kAnyPort, kAnyPort, 1000});
  EXPECT_TRUE(opened.ok()) << ToString(opened.status());
  return *std::move(opened);
}

// The next that is said there.
EventSockets::Heard Hear(EventSockets* sockets, Asker* asker, uint64_t* start) {
  for (int i = 0; i < 100; ++i) {
    sockets->Wait(std::chrono::milliseconds(100));
    const auto heard = sockets->Hear(asker, start);
    if (heard != EventSockets::Heard::kNothing) return heard;
  }
  return EventSockets::Heard::kNothing;
}

TEST(EventSocketsTest, WrongAddressesAndPortsInUseAreErrorsThatNameThem) {
  const auto error_of = [](const std::string& listen, const std::string& replay) {
    const auto opened = EventSockets::Open({listen, replay, 10});
    return opened.ok() ? std::string("opened") : ToString(opened.status());
  };
  EXPECT_THAT(error_of("5557", ""), HasSubstr("\"5557\" is not host:port"));
  EXPECT_THAT(error_of("unix:/tmp/x", ""), HasSubstr("is not host:port"));
  EXPECT_THAT(error_of("203.0.113.7:5557", ""), HasSubstr("cannot listen on 203.0.113.7:5557"));
  EXPECT_THAT(error_of("nobody.invalid:5557", ""), HasSubstr("(an address of this machine, or *)"));
  const auto first = Open();
  EXPECT_THAT(error_of(first->address(), ""),
              HasSubstr("cannot listen on " + first->address() + ": Address already in use"));
  EXPECT_THAT(error_of(kAnyPort, first->replay_address()), HasSubstr("Address already in use"));
}

TEST(EventSocketsTest, APortIsFreeAgainOnceItIsClosed) {
  auto first = Open();
  const std::string address = first->address();
  ZmqPeer subscriber(ZMQ_SUB, address);
  first->Publish("t", 1, "x");
  first.reset();
  EXPECT_TRUE(EventSockets::Open({address, "", 10}).ok());
}

// Of connections in /proc/net/tcp to this port, as the machine's own end has them: whether a timer
// for keep-alive runs.
std::vector<bool> KeptAlive(const std::string& address) {
  const auto port = static_cast<unsigned>(std::stoul(address.substr(address.rfind(':') + 1)));
  std::ifstream table("/proc/net/tcp");
  std::vector<bool> found;
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer;
    words >> number >> local >> remote >> state >> queues >> timer;
    if (state == "01" && std::stoul(local.substr(local.find(':') + 1), nullptr, 16) == port)
      found.push_back(timer.starts_with("02:"));
  }
  return found;
}

TEST(EventSocketsTest, ConnectionsOfAHostThatVanishedEnd) {
  const auto sockets = Open();
  ZmqPeer subscriber(ZMQ_SUB, sockets->address());
  ZmqPeer asker(ZMQ_DEALER, sockets->replay_address());
  asker.Send({BigEndian(1)});
  Asker who;
  uint64_t start = 0;
  ASSERT_EQ(Hear(sockets.get(), &who, &start), EventSockets::Heard::kRequest);
  EXPECT_THAT(KeptAlive(sockets->replay_address()), ElementsAre(true));
  EXPECT_TRUE(ems::testing::Eventually(
      [&] { return KeptAlive(sockets->address()) == std::vector<bool>{true}; }));
}

TEST(EventSocketsTest, RequestsWithAndWithoutDelimiterAreAnsweredAlike) {
  const auto sockets = Open();
  for (const bool delimited : {true, false}) {
    ZmqPeer dealer(ZMQ_DEALER, sockets->replay_address());
    if (delimited) {
      dealer.Send({"", BigEndian(0x0102030405060708)});
    } else {
      dealer.Send({BigEndian(0x0102030405060708)});
    }
    Asker asker;
    uint64_t start = 0;
    ASSERT_EQ(Hear(sockets.get(), &asker, &start), EventSockets::Heard::kRequest);
    EXPECT_EQ(start, 0x0102030405060708u);
    EXPECT_EQ(asker.delimited, delimited);
    EXPECT_EQ(sockets->Tell(asker, UINT64_MAX, "ab"), EventSockets::Told::kSent);
    if (delimited) {
      EXPECT_THAT(dealer.Receive(), ElementsAre("", BigEndian(UINT64_MAX), "ab"));
    } else {
      EXPECT_THAT(dealer.Receive(), ElementsAre(BigEndian(UINT64_MAX), "ab"));
    }
  }
}

TEST(EventSocketsTest, WhatIsNoRequestIsForeign) {
  const auto sockets = Open();
  ZmqPeer dealer(ZMQ_DEALER, sockets->replay_address());
  const std::vector<std::vector<std::string>> foreign = {{""},
                                                         {"1234567"},
                                                         {"123456789"},
                                                         {"", "", BigEndian(1)},
                                                         {"x", BigEndian(1)},
                                                         {"", BigEndian(1), ""},
                                                         {BigEndian(1), BigEndian(1)},
                                                         {"", "7"}};
  Asker asker;
  uint64_t start = 0;
  for (const auto& frames : foreign) {
    dealer.Send(frames);
    EXPECT_EQ(Hear(sockets.get(), &asker, &start), EventSockets::Heard::kForeign);
  }
  dealer.Send({BigEndian(3)});
  EXPECT_EQ(Hear(sockets.get(), &asker, &start), EventSockets::Heard::kRequest);
  EXPECT_EQ(start, 3u);
}

// A frame that is too large ends the connection of who sent it; others go on.
TEST(EventSocketsTest, LargeFramesAreNotTakenIn) {
  const auto sockets = Open();
  ZmqPeer rude(ZMQ_DEALER, sockets->replay_address());
  rude.Send({std::string(1 << 20, 'x')});
  ZmqPeer dealer(ZMQ_DEALER, sockets->replay_address());
  dealer.Send({BigEndian(4)});
  Asker asker;
  uint64_t start = 0;
  ASSERT_EQ(Hear(sockets.get(), &asker, &start), EventSockets::Heard::kRequest);
  EXPECT_EQ(start, 4u);
}

TEST(EventSocketsTest, WhoDoesNotReadIsToldLaterAndWhoIsNotThereIsGone) {
  const auto sockets = Open();
  EXPECT_EQ(sockets->Tell({"nobody", false}, 1, "x"), EventSockets::Told::kGone);
  ZmqPeer dealer(ZMQ_DEALER, sockets->replay_address());
  dealer.Send({BigEndian(1)});
  Asker asker;
  uint64_t start = 0;
  ASSERT_EQ(Hear(sockets.get(), &asker, &start), EventSockets::Heard::kRequest);
  const std::string payload(1 << 20, 'x');  // more of them than sockets and queues hold
  auto told = EventSockets::Told::kSent;
  int sent = 0;
  for (; sent < 4096 && told == EventSockets::Told::kSent; ++sent)
    told = sockets->Tell(asker, 1, payload);
  EXPECT_EQ(told, EventSockets::Told::kLater);
  for (int i = 0; i < sent - 1; ++i) ASSERT_EQ(dealer.Receive().size(), 2u);
}

}  // namespace
}  // namespace ems::kv_events
