// What must hold: each kind of peer has its name, and nobody at an address is an error.
#include "bench/peer_client.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(PeerClientTest, KindsHaveNames) {
  EXPECT_EQ(PeerName(PeerKind::kRedis), "redis");
  EXPECT_EQ(PeerName(PeerKind::kMemcached), "memcached");
}

TEST(PeerClientTest, NobodyThereIsAnError) {
  for (const PeerKind kind : {PeerKind::kRedis, PeerKind::kMemcached}) {
    EXPECT_FALSE(ConnectPeer(kind, "unix:/no/such/socket").ok());
  }
}

}  // namespace
}  // namespace ems::bench
