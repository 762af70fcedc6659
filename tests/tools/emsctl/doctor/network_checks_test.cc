// What must hold: who does not answer is named, and what differs between machines is said.
#include "tools/emsctl/doctor/network_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/bytes.h"
#include "fabric/net/socket.h"

namespace ems::emsctl {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

ServerSeen Seen(const std::string& name, Status reached = OkStatus()) {
  return {.name = name, .address = name + ":7500", .reached = reached, .took = milliseconds(3)};
}

TEST(ServersCheckTest, OneLineWhenAllAnswer) {
  const std::vector<ServerSeen> servers = {Seen("a"), Seen("b")};
  const Findings findings = CheckServers(servers);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_EQ(findings[0].found, "2 of 2 answer, connected in 3.0 ms at most");
}

TEST(ServersCheckTest, WhoDoesNotAnswerIsNamedAndTheListIsBounded) {
  std::vector<ServerSeen> servers = {Seen("a")};
  for (int i = 0; i < 40; ++i)
    servers.push_back(Seen(fmt::format("b{}", i), Error(StatusCode::kUnavailable, "refused")));
  const Findings findings = CheckServers(servers);
  ASSERT_EQ(findings.size(), 17U);
  EXPECT_EQ(findings[0].level, Level::kFail);
  EXPECT_EQ(findings[0].found, "1 of 41 answer, connected in 3.0 ms at most");
  EXPECT_EQ(findings[1].check, "server b0");
  EXPECT_EQ(findings[1].found, "refused");
  EXPECT_THAT(findings[1].mend, HasSubstr("b0:7500"));
}

TEST(VersionsCheckTest, OthersThanOursAreNamed) {
  std::vector<ServerSeen> servers = {Seen("a"), Seen("b"), Seen("c")};
  servers[0].version = "1.2.3";
  servers[1].version = "1.2.2";  // c says nothing
  const Finding differ = CheckVersions("1.2.3", "1.2.2", servers);
  EXPECT_EQ(differ.level, Level::kWarn);
  EXPECT_EQ(differ.found, "emsctl 1.2.3; the controller, b 1.2.2");
  EXPECT_THAT(differ.mend, HasSubstr("the controller first"));
  servers[1].version = "1.2.3";
  EXPECT_EQ(CheckVersions("1.2.3", "", servers).level, Level::kOk);
}

TEST(ClocksCheckTest, SaysWhoseIsOff) {
  std::vector<ServerSeen> servers = {Seen("a"), Seen("b")};
  EXPECT_EQ(CheckClocks({}, servers).found, "nobody told the time");
  servers[0].skew_ms = -1500;
  EXPECT_EQ(CheckClocks(2, servers).level, Level::kOk);
  EXPECT_EQ(CheckClocks(2, servers).found, "2 compared with this host's, -1500 ms at most");
  servers[1].skew_ms = 61'000;
  const Finding off = CheckClocks(2, servers);
  EXPECT_EQ(off.level, Level::kWarn);
  EXPECT_EQ(off.found, "b +61.0 s");
}

TEST(ExposureCheckTest, APortOnAllAddressesIsSaid) {
  const std::vector<OwnPort> ports = {{.what = "controller", .address = "127.0.0.1:7400"},
                                      {.what = "data plane of a", .address = "10.0.0.1:7500"}};
  const std::vector<Listener> tight = {
      {.port = 7400}, {.port = 7500}, {.port = 22, .everywhere = true}};
  EXPECT_EQ(CheckExposure(ports, tight).level, Level::kOk);
  const std::vector<Listener> open = {{.port = 7400}, {.port = 7500, .everywhere = true}};
  const Finding finding = CheckExposure(ports, open);
  EXPECT_EQ(finding.level, Level::kWarn);
  EXPECT_EQ(finding.found, "on all addresses: data plane of a (port 7500)");
}

TEST(UnixSocketCheckTest, TellsWhatLacks) {
  const std::string path = ::testing::TempDir() + fmt::format("ems-doctor-{}.sock", ::getpid());
  EXPECT_EQ(CheckUnixSocket(path, milliseconds(100)).level, Level::kWarn);
  const fabric::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const Finding refused = CheckUnixSocket(path, milliseconds(100));
  EXPECT_EQ(refused.level, Level::kWarn);
  EXPECT_THAT(refused.mend, HasSubstr("nobody listens"));
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  EXPECT_EQ(CheckUnixSocket(path, milliseconds(100)).level, Level::kOk);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ems::emsctl
