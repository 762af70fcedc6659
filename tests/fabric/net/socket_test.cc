// What must hold: addresses are read strictly, and a dead peer is known at once.
#include "fabric/net/socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "fabric/net/same_machine.h"
#include "tests/support/own_network.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;

constexpr Duration kPatience = std::chrono::seconds(5);

TEST(ParseAddressTest, ReadsThreeForms) {
  Result<Address> tcp = ParseAddress("node-1.example:7500");
  ASSERT_TRUE(tcp.ok());
  EXPECT_EQ(tcp->host, "node-1.example");
  EXPECT_EQ(tcp->port, 7500);
  EXPECT_FALSE(tcp->is_unix());
  Result<Address> six = ParseAddress("[::1]:80");
  ASSERT_TRUE(six.ok());
  EXPECT_EQ(six->host, "::1");
  Result<Address> path = ParseAddress("unix:/run/ems.sock");
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(path->unix_path, "/run/ems.sock");
}

TEST(ParseAddressTest, RefusesWhatItCannotMean) {
  const std::vector<std::string> bad = {
      "",           "host",     "host:",    ":",        "host:0x50",
      "host:65536", "host:-1",  "::1:80",   "[::1]80",  "[::1:80",
      "unix:",      "host:80 ", "host:8 0", "host:80x", "unix:" + std::string(200, 'p')};
  for (const std::string& text : bad) {
    EXPECT_EQ(ParseAddress(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseAddressTest, FormatsBack) {
  EXPECT_EQ(FormatHostPort("::1", 80), "[::1]:80");
  EXPECT_EQ(FormatHostPort("10.0.0.1", 80), "10.0.0.1:80");
}

TEST(ConnectTest, ARefusedConnectionFailsAtOnce) {
  // Bound and not listening: nobody else can take the port meanwhile.
  Fd taken(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const TimePoint start = Clock::System().Now();
  Result<Fd> fd = Connect({.host = "127.0.0.1", .port = ntohs(address.sin_port), .unix_path = ""},
                          std::chrono::seconds(5));
  EXPECT_EQ(fd.status().code(), StatusCode::kUnavailable) << fd.status();
  EXPECT_LT(Clock::System().Now() - start, milliseconds(50));
}

TEST(PeerTextTest, NamesAnAddressOrAProcess) {
  const Result<Fd> listener = ListenTcp(*ParseAddress("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto address = ParseAddress(fmt::format("127.0.0.1:{}", BoundPort(listener->get())));
  const Result<Fd> client = Connect(*address, std::chrono::seconds(5));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(PeerText(client->get()), FormatHostPort("127.0.0.1", BoundPort(listener->get())));
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const Fd one(pair[0]), other(pair[1]);
  EXPECT_EQ(PeerText(one.get()), fmt::format("pid {}", ::getpid()));
  EXPECT_EQ(PeerText(-1), "");
}

// In a network of its own, where two connections use up all ports that there are for callers: what
// the third one ends with. Runs in a child process.
Status ConnectWithoutAFreePort() {
  EMS_RETURN_IF_ERROR(testing::EnterOwnNetwork());
  const Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  const uint16_t port = 7500;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "50000 50001" << std::flush;
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), 16) != 0) {
    return Error(StatusCode::kInternal, "cannot listen there: {}", ErrnoText(errno));
  }
  std::vector<Fd> taken;
  while (taken.size() < 10) {
    Result<Fd> fd = Connect({.host = "127.0.0.1", .port = port, .unix_path = ""}, kPatience);
    if (!fd.ok()) return fd.status();
    taken.push_back(*std::move(fd));
  }
  return OkStatus();
}

TEST(ConnectTest, WithoutAFreePortItIsUnavailableAndSaysWhy) {
  EXPECT_EQ(testing::InAChild([] { return ToString(ConnectWithoutAFreePort()); }),
            "UNAVAILABLE: connect to 127.0.0.1:7500: Cannot assign requested address");
}

TEST(ConnectTest, AMissingUnixSocketIsUnavailable) {
  Result<Fd> fd =
      Connect({.host = "", .port = 0, .unix_path = "/nonexistent/ems.sock"}, milliseconds(100));
  EXPECT_EQ(fd.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(fd.status()).find("/nonexistent/ems.sock"), std::string_view::npos);
}

TEST(StartConnectTest, TheSocketIsReadyWhenItIsConnected) {
  Result<Fd> listener = ListenTcp({.host = "127.0.0.1", .port = 0, .unix_path = ""});
  ASSERT_TRUE(listener.ok());
  const uint16_t port = BoundPort(listener->get());
  for (const uint32_t attempt : {0U, 1U, 7U}) {
    Result<Fd> fd = StartConnect({.host = "127.0.0.1", .port = port, .unix_path = ""}, attempt);
    ASSERT_TRUE(fd.ok()) << fd.status();
    pollfd entry{.fd = fd->get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
    EXPECT_EQ(::send(fd->get(), "x", 1, MSG_NOSIGNAL), 1);
  }
  EXPECT_FALSE(StartConnect({.host = "", .port = 0, .unix_path = "/nonexistent/ems.sock"}, 0).ok());
}

TEST(FdTest, MovesAndCloses) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Fd one(fds[0]), two(fds[1]);
  Fd moved(std::move(one));
  EXPECT_FALSE(one.valid());  // NOLINT(bugprone-use-after-move): that is the point
  moved = std::move(two);     // closes fds[0]
  char byte = 0;
  EXPECT_EQ(::recv(moved.get(), &byte, 1, 0), 0) << "the other end is closed";
}

TEST(HostIdTest, IsStable) {
  EXPECT_FALSE(HostId().empty());
  EXPECT_EQ(HostId(), HostId());
}

TEST(HostIdTest, TellsMachinesFromHostNames) {
  EXPECT_TRUE(OnOneMachine(HostId(), HostId()));
  EXPECT_TRUE(OnOneMachine("engine/boot-1", "server/boot-1"));
  EXPECT_FALSE(OnOneMachine("server/boot-1", "server/boot-2"));
  EXPECT_TRUE(OnOneMachine("server/", "server/")) << "the boot is not known";
  EXPECT_FALSE(OnOneMachine("engine/", "server/"));
  EXPECT_FALSE(OnOneMachine("", "server/boot-1"));
}

TEST(ListenerIdTest, NamesOneAddressAndNoHostThatIsAName) {
  EXPECT_NE(ListenerId("127.0.0.1:7500"), 0U);
  EXPECT_EQ(ListenerId("127.0.0.1:7500"), ListenerId("127.0.0.1:7500"));
  EXPECT_NE(ListenerId("127.0.0.1:7500"), ListenerId("127.0.0.1:7501"));
  EXPECT_NE(ListenerId("[::1]:7500"), 0U);
  EXPECT_EQ(ListenerId("localhost:7500"), 0U) << "it may have several addresses";
}

}  // namespace
}  // namespace ems::fabric
