// What must hold when the host at the other end of a TCP connection is gone without a word: no
// packet of it comes any more, no acknowledgement and no end. The connection ends by itself, within
// TCP_USER_TIMEOUT where bytes wait for an acknowledgement, and by keep-alive where none do.
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "tests/support/memory_server.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/wire_peer.h"

namespace ems::testing {
namespace {

using std::chrono::seconds;

constexpr Duration kUserTimeout = seconds(10);  // fabric/net/socket.cc, fabric/rpc/rpc_server.cc
// The first probe after 10 s of silence; the second, 5 s later, finds the user timeout over.
constexpr Duration kKeepAlive = seconds(15);
constexpr Duration kSlack = seconds(4);  // timers of the kernel back off
constexpr Duration kNever = std::chrono::hours(1);
constexpr uint64_t kValueBytes = 32 * kMiB;

// A server that has no deadlines of its own, so that TCP's show.
fabric::RpcServerOptions PatientOptions() {
  fabric::RpcServerOptions options = MemoryServer::DefaultOptions();
  options.header_timeout = options.transfer_timeout = std::chrono::minutes(10);
  options.idle_timeout = Duration::zero();
  options.value_bytes_max = 2 * kValueBytes;
  return options;
}

struct Rig {
  Rig() : server(PatientOptions()), proxy(server.address()) {}
  bool Serves(int connections) const {
    return Eventually([&] { return server.metrics.connections.value() == connections; });
  }
  void Vanish(Way sender) { proxy.Set(sender, {.carry = Carry::kVanish}); }

  MemoryServer server;
  TcpProxy proxy;
};

// All at the same time: each of them waits for the kernel.
TEST(VanishedPeerTest, ConnectionsEndByThemselves) {
  // A client that has asked and reads its answer, one that is idle, and, at the other end, one
  // whose server is gone.
  Rig reading, idle, asking;
  reading.server.store.Insert("large", std::string(kValueBytes, 'v'));
  WirePeer reader = WirePeer::Connect(reading.proxy.address());
  ASSERT_TRUE(reader.Send(KeyFrame(wire::Op::kGet, 1, "large")));
  ASSERT_TRUE(reader.Receive(kMiB)) << "the answer has begun";
  WirePeer sleeper = WirePeer::Connect(idle.proxy.address());
  ASSERT_TRUE(sleeper.Send(KeyFrame(wire::Op::kGet, 1, "none")));
  ASSERT_TRUE(ReadReply(&sleeper)) << "it is connected, and its request is done";
  WirePeer asker = WirePeer::Connect(asking.proxy.address());
  for (const Rig* rig : {&reading, &idle, &asking}) ASSERT_TRUE(rig->Serves(1));

  const TimePoint start = Clock::System().Now();
  reading.Vanish(Way::kToClient);  // the proxy's end of the server's connection hears nothing more
  idle.Vanish(Way::kToClient);
  asking.Vanish(Way::kToTarget);
  ASSERT_TRUE(asker.Send(KeyFrame(wire::Op::kGet, 1, "any")));

  // By how long each has outlived its peer.
  std::optional<Duration> read_took, idle_took, ask_took;
  const auto note = [&](bool ended, std::optional<Duration>* took) {
    if (ended && !*took) *took = Clock::System().Now() - start;
  };
  Eventually(
      [&] {
        note(reading.server.metrics.connections.value() == 0, &read_took);
        note(idle.server.metrics.connections.value() == 0, &idle_took);
        note(ask_took || asker.WaitClosed(std::chrono::milliseconds(1)), &ask_took);
        return read_took && idle_took && ask_took;
      },
      kKeepAlive + kSlack);
  EXPECT_LT(ask_took.value_or(kNever), kUserTimeout + kSlack) << "a client's TCP_USER_TIMEOUT";
  EXPECT_EQ(asker.last_error(), ETIMEDOUT);
  EXPECT_LT(read_took.value_or(kNever), kUserTimeout + kSlack) << "a server's TCP_USER_TIMEOUT";
  EXPECT_LT(idle_took.value_or(kNever), kKeepAlive + kSlack) << "a server's keep-alive";
  for (const auto& took : {ask_took, read_took, idle_took})
    EXPECT_GE(took.value_or(kNever), kUserTimeout - seconds(1)) << "something else has ended it";
  EXPECT_EQ(reading.server.store.counts().live_sessions, 0);
}

}  // namespace
}  // namespace ems::testing
