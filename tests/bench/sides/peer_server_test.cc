// What must hold: redis-server and memcached start on either transport, take values as large as
// configured, and are gone with their owner, process and folder.
#include "bench/sides/peer_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "bench/sides/peer_client.h"

namespace ems::bench {
namespace {

struct Case {
  PeerKind kind;
  PeerTransport transport;
};

class PeerServerTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (FindPeerProgram(GetParam().kind).empty()) {
      GTEST_SKIP() << PeerName(GetParam().kind) << " is not installed";
    }
  }
  static PeerServerOptions Options() {
    return {.kind = GetParam().kind,
            .transport = GetParam().transport,
            .memory_bytes = 256 * kMiB,
            .value_bytes_max = 16 * kMiB};
  }
};

TEST_P(PeerServerTest, TakesValuesOfEverySizeUpToItsLargest) {
  const auto server = PeerServer::Start(Options());
  ASSERT_TRUE(server.ok()) << ToString(server.status());
  EXPECT_THAT((*server)->version(), ::testing::MatchesRegex("[a-z-]+ [0-9.]+"));
  auto client = PeerClient::Connect(GetParam().kind, (*server)->address());
  ASSERT_TRUE(client.ok()) << ToString(client.status());
  for (const uint64_t bytes : {uint64_t{1}, 4 * kKiB, kMiB, 16 * kMiB}) {
    const std::string value(bytes, 'v');
    std::string into(bytes, '?');
    const MutableBytes room = std::as_writable_bytes(std::span(into));
    EXPECT_EQ(client->Get(std::to_string(bytes), room).code(), StatusCode::kNotFound);
    const Status stored = client->Set(std::to_string(bytes), AsBytes(value));
    ASSERT_TRUE(stored.ok()) << ToString(stored);
    ASSERT_TRUE(client->Get(std::to_string(bytes), room).ok());
    EXPECT_EQ(into, value);
  }
}

TEST_P(PeerServerTest, IsGoneWithItsOwner) {
  auto server = PeerServer::Start(Options());
  ASSERT_TRUE(server.ok()) << ToString(server.status());
  const pid_t pid = (*server)->pid();
  const std::string address = (*server)->address();
  EXPECT_EQ(kill(pid, 0), 0);
  server->reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  if (!address.starts_with("unix:")) return;
  const std::filesystem::path socket = address.substr(5);
  EXPECT_FALSE(std::filesystem::exists(socket.parent_path()));
}

INSTANTIATE_TEST_SUITE_P(Peers, PeerServerTest,
                         ::testing::Values(Case{PeerKind::kRedis, PeerTransport::kUnix},
                                           Case{PeerKind::kRedis, PeerTransport::kTcp},
                                           Case{PeerKind::kMemcached, PeerTransport::kUnix},
                                           Case{PeerKind::kMemcached, PeerTransport::kTcp}));

TEST(PeerServerStartTest, ServerThatRefusesItsSettingsSaysWhatItPrinted) {
  if (FindPeerProgram(PeerKind::kMemcached).empty()) GTEST_SKIP() << "memcached is not installed";
  const auto server = PeerServer::Start({.kind = PeerKind::kMemcached,
                                         .transport = PeerTransport::kUnix,
                                         .memory_bytes = 64 * kMiB,
                                         .value_bytes_max = 2 * kGiB});
  ASSERT_EQ(server.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Message(server.status())), ::testing::HasSubstr("size"));
}

}  // namespace
}  // namespace ems::bench
