// What must hold: a call to a server that is named keeps its time while the system's own resolver
// waits for a name server that is silent, and a name that was found before goes on being served.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/check.h"
#include "common/thread_pool.h"
#include "fabric/net/name_lookup.h"
#include "fabric/rpc/rpc_channel.h"
#include "tests/support/eventually.h"
#include "tests/support/memory_server.h"
#include "tests/support/own_network.h"
#include "tests/support/temp_path.h"

namespace ems::fabric {
namespace {

using std::chrono::milliseconds;

constexpr Duration kPatience = std::chrono::seconds(4);  // the resolver has 5 s for each attempt

// Says that each name has the address 127.0.0.1, until it falls silent.
class NameServer final {
 public:
  NameServer() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(53);
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EMS_CHECK(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&local), sizeof(local)) == 0, "{}",
              ErrnoText(errno));
    thread_ = Thread("dns", [this] { Serve(); });
  }
  void FallSilent() { silent_ = true; }
  int swallowed() const { return swallowed_; }

 private:
  [[noreturn]] void Serve() {
    while (true) {
      std::array<char, 512> query{};
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      const ssize_t n = ::recvfrom(socket_.get(), query.data(), query.size(), 0,
                                   reinterpret_cast<sockaddr*>(&from), &length);
      if (n < 16) continue;
      if (silent_) {
        ++swallowed_;
        continue;
      }
      // The header and the question, which ends with type and class; RFC 1035, 4.1.
      std::string answer(query.data(), static_cast<size_t>(n));
      const bool for_v4 = answer[answer.size() - 3] == 1;
      answer[2] = '\x81', answer[3] = '\x80';  // an answer, and no error
      answer[7] = for_v4 ? 1 : 0;              // so many records
      if (for_v4) answer.append("\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x01", 16);
      ::sendto(socket_.get(), answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from),
               length);
    }
  }

  const Fd socket_;
  std::atomic<bool> silent_{false};
  std::atomic<int> swallowed_{0};
  Thread thread_;
};

// With the files of `folder` in place of those of /etc. What ended how, in a line.
std::string CallWhileNameServersAreSilent(const std::string& folder) {
  const Status entered = testing::EnterOwnNetwork(CLONE_NEWNS);
  if (!entered.ok()) return ToString(entered);
  for (const std::string name : {"resolv.conf", "nsswitch.conf"}) {
    if (::mount((folder + "/" + name).c_str(), ("/etc/" + name).c_str(), nullptr, MS_BIND,
                nullptr) != 0 &&
        errno != ENOENT)
      return "PERMISSION_DENIED: mount: " + ErrnoText(errno);
  }
  // The process ends with these and their threads.
  NameServer& name_server = *std::make_unique<NameServer>().release();
  ManualClock& clock = *std::make_unique<ManualClock>().release();
  NameLookup& names = *std::make_unique<NameLookup>(clock).release();
  testing::MemoryServer server;
  const uint16_t port = ParseAddress(server.address())->port;
  const auto call = [&](const std::string& host, Duration timeout) {
    const Address address{.host = host, .port = port, .unix_path = ""};
    return std::string(CodeName(RpcChannel::Open(address, timeout, kNoCluster).status().code()));
  };
  std::string said = "known " + call("known.ems.test", kPatience);
  const bool found = names.Find("known.ems.test", port, kPatience).ok();
  name_server.FallSilent();
  const TimePoint begin = Clock::System().Now();
  said += ", new " + call("new.ems.test", milliseconds(100));
  clock.Advance(NameLookup::kFreshFor);
  const bool stale = names.Find("known.ems.test", port, Duration::zero()).ok();
  if (found && stale) said += ", stale OK";
  if (Clock::System().Now() - begin < kPatience) said += ", in time";
  // One question each of the two lookups, which still wait.
  if (testing::Eventually([&] { return name_server.swallowed() >= 2; })) said += ", asked";
  return said;
}

TEST(SilentNameServerTest, CallsKeepTheirTimeAndKnownNamesAreServed) {
  const testing::TempPath folder("names");
  std::filesystem::create_directory(folder.path());
  std::ofstream(folder.path() + "/resolv.conf") << "nameserver 127.0.0.1\n";
  std::ofstream(folder.path() + "/nsswitch.conf") << "hosts: dns\n";
  const std::string said =
      testing::InAChild([&] { return CallWhileNameServersAreSilent(folder.path()); });
  if (said.starts_with("PERMISSION_DENIED"))
    GTEST_SKIP() << "no network and mounts of one's own here: " << said;
  EXPECT_EQ(said, "known OK, new DEADLINE_EXCEEDED, stale OK, in time, asked");
}

}  // namespace
}  // namespace ems::fabric
