// What must hold: connections spread over the threads, live there and are asked about their
// deadlines; one too many, and one without a descriptor, is told so; a stop waits for requests in
// hand and leaves nothing.
#include "fabric/net/io_threads.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "tests/support/connect_from.h"
#include "tests/support/eventually.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ConnectFrom;
using testing::Eventually;
using testing::WirePeer;

struct Counts {
  std::atomic<int> alive{0};
  std::atomic<int> checked{0};
  std::atomic<int> asked_to_close{0};
  std::atomic<int> abandoned{0};
  std::atomic<int> made_room{0};
  std::atomic<int> refused{0};
  std::atomic<bool> idle{true};  // connections that come
};

// Reads until its peer goes; then it ends.
class Reader final : public IoConnection, public std::enable_shared_from_this<Reader> {
 public:
  Reader(StreamSocket socket, Counts* counts) : socket_(std::move(socket)), counts_(counts) {
    ++counts_->alive;
  }
  ~Reader() override { --counts_->alive; }
  void Start(std::function<void()> ended) {
    ended_ = std::move(ended);
    socket_.async_wait(StreamSocket::wait_read,
                       [self = shared_from_this()](asio::error_code) { self->ended_(); });
  }
  void CheckDeadline(TimePoint) override { ++counts_->checked; }
  void CloseIdle() override { ++counts_->asked_to_close; }
  void Abandon() override { ++counts_->abandoned; }
  TimePoint idle_since() const override { return since_; }
  void MakeRoom() override {
    ++counts_->made_room;
    socket_.close();
  }

 private:
  StreamSocket socket_;
  Counts* const counts_;
  const TimePoint since_ =
      counts_->idle ? Clock::System().Now() - IoThreads::kIdleLeast : TimePoint::max();
  std::function<void()> ended_;
};

// A server of readers. `Listen` gives its address.
struct Rig {
  explicit Rig(uint32_t connections_max = 16, uint32_t peer_connections_max = UINT32_MAX)
      : io({.name = "test-io",
            .threads = 2,
            .connections_max = connections_max,
            .peer_connections_max = peer_connections_max,
            .adopt =
                [this](StreamSocket socket, IoThread* thread) {
                  auto reader = std::make_shared<Reader>(std::move(socket), &counts);
                  reader->Start([thread, at = thread->Keep(reader)] { thread->LetGo(at); });
                  auto all = adopted_by.Lock();
                  all->push_back(thread);  // last: by then it counts as alive
                },
            .refuse =
                [this](int socket) {
                  ++counts.refused;
                  ::send(socket, "no", 2, MSG_DONTWAIT | MSG_NOSIGNAL);
                }}) {}
  std::string Listen() {
    Result<std::string> address = io.ListenTcp("127.0.0.1:0");
    EXPECT_TRUE(address.ok()) << address.status();
    io.Run();
    return address.value_or("");
  }

  std::vector<IoThread*> AdoptedBy() {
    auto all = adopted_by.Lock();
    return *all;
  }

  Counts counts;
  Guarded<std::vector<IoThread*>> adopted_by;  // in the order of connections
  IoThreads io;
};

// Connects and waits until the server has it; the thread that it lives on.
IoThread* ConnectTo(const std::string& address, Rig* rig, std::vector<WirePeer>* peers) {
  const size_t before = rig->AdoptedBy().size();
  peers->push_back(WirePeer::Connect(address));
  EXPECT_TRUE(Eventually([&] { return rig->AdoptedBy().size() == before + 1; }));
  return rig->AdoptedBy().back();
}

TEST(IoThreadsTest, ConnectionsOfOneListenerSpreadWhateverComesInBetween) {
  const std::string path = ::testing::TempDir() + "io_spread_" + std::to_string(::getpid());
  Rig rig;
  ASSERT_TRUE(rig.io.ListenUnix(path, 0600).ok());
  const std::string tcp = rig.Listen(), local = "unix:" + path;
  std::vector<WirePeer> peers;
  IoThread* const first = ConnectTo(tcp, &rig, &peers);
  IoThread* const near = ConnectTo(local, &rig, &peers);
  IoThread* const second = ConnectTo(tcp, &rig, &peers);
  EXPECT_NE(first, second);
  EXPECT_NE(near, ConnectTo(local, &rig, &peers));
}

TEST(IoThreadsTest, TheThreadWithTheFewestConnectionsTakesTheNext) {
  Rig rig;
  const std::string address = rig.Listen();
  std::vector<WirePeer> peers;
  IoThread* const first = ConnectTo(address, &rig, &peers);
  for (int i = 0; i < 5; ++i) ConnectTo(address, &rig, &peers);
  for (size_t i = 0; i < peers.size(); ++i)
    if (rig.AdoptedBy()[i] == first) peers[i].Close();
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 3; }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ConnectTo(address, &rig, &peers), first);
}

TEST(IoThreadsTest, ConnectionsLiveUntilTheyEndAndAreAskedAboutDeadlines) {
  Rig rig;
  const std::string address = rig.Listen();
  std::vector<WirePeer> peers;
  peers.reserve(5);
  for (int i = 0; i < 5; ++i) peers.push_back(WirePeer::Connect(address));
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 5 && rig.counts.checked >= 10; }));
  peers.clear();
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 0; }));
  EXPECT_EQ(rig.counts.refused, 0);
}

TEST(IoThreadsTest, OneTooManyIsRefusedAndThePlaceOfOneThatEndsIsFree) {
  Rig rig(1);
  const std::string address = rig.Listen();
  WirePeer first = WirePeer::Connect(address);
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 1; }));
  EXPECT_EQ(WirePeer::Connect(address).ReceiveAll(), "no");
  EXPECT_EQ(rig.counts.refused, 1);
  first.Close();
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 0; }));
  const WirePeer second = WirePeer::Connect(address);
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 1; }));
}

TEST(IoThreadsTest, APeerThatHasAllItMayHaveIsRefusedAndOthersAreNot) {
  Rig rig(64, 2);
  const std::string address = rig.Listen();
  std::vector<Fd> one, other;
  for (int i = 0; i < 5; ++i) one.push_back(ConnectFrom("127.0.0.1", address));
  ASSERT_TRUE(Eventually([&] { return rig.counts.refused == 3; }));
  for (int i = 0; i < 2; ++i) other.push_back(ConnectFrom("127.0.0.2", address));
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 4; }));
  EXPECT_EQ(rig.counts.refused, 3);
  one.clear();
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 2; }));
  one.push_back(ConnectFrom("127.0.0.1", address));
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 3; })) << "its places are free again";
}

TEST(IoThreadsTest, APeerNearWhatItMayHaveMakesRoomOfItsOwnAlone) {
  Rig rig(1000, 64);
  const std::string address = rig.Listen();
  std::vector<Fd> one, other;
  for (int i = 0; i < 15; ++i) other.push_back(ConnectFrom("127.0.0.2", address));
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 15; }));  // idle longer than all others
  for (size_t i = 1; i <= 80; ++i) {
    one.push_back(ConnectFrom("127.0.0.1", address));
    ASSERT_TRUE(Eventually([&] { return rig.AdoptedBy().size() == 15 + i; })) << i;
    ASSERT_TRUE(Eventually([&] { return rig.counts.alive <= 15 + 62; })) << i;
  }
  EXPECT_GE(rig.counts.made_room, 80 - 62);
  EXPECT_EQ(rig.counts.refused, 0);
  one.clear();
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 15; }));
  rig.counts.idle = false;
  for (int i = 0; i < 80; ++i) one.push_back(ConnectFrom("127.0.0.1", address));
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 15 + 64 && rig.counts.refused == 16; }));
  for (const Fd& fd : other) {
    char byte = 0;
    EXPECT_EQ(::recv(fd.get(), &byte, 1, MSG_DONTWAIT), -1) << "closed";
  }
}

// The other thread has more connections, and none of this peer.
TEST(IoThreadsTest, APeerMakesRoomOfItsOwnOnWhicheverThreadTheyAre) {
  Rig rig(1000, 16);
  const std::string address = rig.Listen();
  std::vector<Fd> one, others;
  for (int i = 0; i < 60; ++i) {
    others.push_back(ConnectFrom(("127.0.0." + std::to_string(2 + i / 10)).c_str(), address));
    ASSERT_TRUE(Eventually([&] { return rig.counts.alive == i + 1; })) << i;
  }
  const std::vector<IoThread*> threads = rig.AdoptedBy();
  for (size_t i = 0; i < others.size(); ++i)
    if (threads[i] != threads[0]) others[i].Close();
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 30; }));
  for (size_t i = 1; i <= 40; ++i) {
    one.push_back(ConnectFrom("127.0.0.1", address));
    ASSERT_TRUE(Eventually([&] { return rig.AdoptedBy().size() == 60 + i; })) << i;
    EXPECT_NE(rig.AdoptedBy().back(), threads[0]);
    ASSERT_TRUE(Eventually([&] { return rig.counts.alive <= 30 + 15; })) << i;
  }
  EXPECT_EQ(rig.counts.refused, 0);
}

TEST(IoThreadsTest, OfOtherPidNamespacesEachUserIsAPeer) {
  EXPECT_NE(LocalPeer(0, 1000), LocalPeer(0, 1001));
  EXPECT_EQ(LocalPeer(0, 1000), LocalPeer(0, 1000));
  EXPECT_NE(LocalPeer(0, 1000), LocalPeer(1000, 1000)) << "a process that has a number";
  EXPECT_NE(LocalPeer(1, 1000), LocalPeer(2, 1000));
}

TEST(IoThreadsTest, IdleConnectionsOfThePeerThatHasMostMakeRoom) {
  Rig rig(16);
  const std::string address = rig.Listen();
  std::vector<Fd> few, many;
  for (int i = 0; i < 4; ++i) few.push_back(ConnectFrom("127.0.0.2", address));
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 4; }));  // idle longer than all others
  for (size_t i = 1; i <= 60; ++i) {
    many.push_back(ConnectFrom("127.0.0.1", address));
    ASSERT_TRUE(Eventually([&] { return rig.AdoptedBy().size() == 4 + i; })) << i;
    ASSERT_TRUE(Eventually([&] { return rig.counts.alive <= 15; })) << i;
  }
  EXPECT_EQ(rig.counts.refused, 0);
  EXPECT_GE(rig.counts.made_room, 60 + 4 - 15);
  few.push_back(ConnectFrom("127.0.0.2", address));
  ASSERT_TRUE(Eventually([&] { return rig.AdoptedBy().size() == 65; }));
  for (const Fd& fd : few) {
    char byte = 0;
    EXPECT_EQ(::recv(fd.get(), &byte, 1, MSG_DONTWAIT), -1) << "closed";
  }
}

TEST(IoThreadsTest, WithoutDescriptorsPeersAreRefusedAndThenServedAgain) {
  Rig rig;
  const std::string address = rig.Listen();
  WirePeer peer = WirePeer::Connect(address);  // what it needs later is loaded now
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 1; }));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Fd probe(::dup(client.get()));
  // Only descriptors below the limit can be made: all of them are in use.
  const rlimit none{.rlim_cur = static_cast<rlim_t>(probe.get()), .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::vector<Fd> fillers;
  for (int fd = ::dup(client.get()); fd >= 0; fd = ::dup(client.get())) fillers.emplace_back(fd);
  const Result<Address> parsed = ParseAddress(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(parsed->port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  EXPECT_TRUE(Eventually([&] { return rig.counts.refused >= 1; }));
  fillers.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const WirePeer second = WirePeer::Connect(address);
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 2; }));
}

TEST(IoThreadsTest, AStopWaitsForRequestsInHandAndAbandonsTheRest) {
  Rig rig;
  const std::string address = rig.Listen();
  WirePeer peer = WirePeer::Connect(address);
  ASSERT_TRUE(Eventually([&] { return rig.counts.alive == 1; }));
  rig.io.in_hand()->fetch_add(1);
  std::atomic<bool> stopped{false};
  Thread stopper("stopper", [&] {
    rig.io.Stop(seconds(20));
    stopped = true;
  });
  EXPECT_TRUE(Eventually([&] { return rig.counts.asked_to_close == 1; }));
  EXPECT_TRUE(Eventually([&] { return !WirePeer::Connect(address).connected(); }));
  EXPECT_FALSE(stopped);
  EXPECT_EQ(rig.counts.abandoned, 0);
  rig.io.in_hand()->fetch_sub(1);
  stopper.Join();
  EXPECT_GE(rig.counts.abandoned, 1);
  EXPECT_EQ(rig.counts.alive, 0);
  EXPECT_TRUE(peer.WaitClosed());
}

TEST(IoThreadsTest, ARequestThatDoesNotEndIsWaitedForNoLongerThanPatience) {
  Rig rig;
  (void)rig.Listen();
  rig.io.in_hand()->fetch_add(1);
  const TimePoint start = Clock::System().Now();
  rig.io.Stop(milliseconds(50));
  EXPECT_GE(Clock::System().Now() - start, milliseconds(50));
}

TEST(IoThreadsTest, AUnixSocketIsServedAndItsNameGoes) {
  const std::string path = ::testing::TempDir() + "io_threads_" + std::to_string(::getpid());
  Rig rig;
  ASSERT_TRUE(rig.io.ListenUnix(path, 0600).ok());
  const std::string address = rig.Listen();
  Rig other;
  EXPECT_EQ(other.io.ListenUnix(path, 0600).code(), StatusCode::kUnavailable);
  const WirePeer near = WirePeer::Connect("unix:" + path), far = WirePeer::Connect(address);
  EXPECT_TRUE(Eventually([&] { return rig.counts.alive == 2; }));
  rig.io.Stop(Duration::zero());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(IoThreadsTest, BadAndTakenAddressesAreErrors) {
  Rig rig;
  const std::string address = rig.Listen();
  Rig other;
  EXPECT_EQ(other.io.ListenTcp("nonsense").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other.io.ListenTcp("unix:/x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other.io.ListenTcp(address).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ems::fabric
