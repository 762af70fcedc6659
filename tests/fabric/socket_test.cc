// What must hold: addresses are read strictly, and a dead peer is known at once.
#include "fabric/socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <vector>

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;

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

TEST(ConnectTest, AMissingUnixSocketIsUnavailable) {
  Result<Fd> fd =
      Connect({.host = "", .port = 0, .unix_path = "/nonexistent/ems.sock"}, milliseconds(100));
  EXPECT_EQ(fd.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(Message(fd.status()).find("/nonexistent/ems.sock"), std::string_view::npos);
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

}  // namespace
}  // namespace ems::fabric
