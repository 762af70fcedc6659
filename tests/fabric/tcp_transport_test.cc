// What must hold: messages go through, memory is refused.
#include "fabric/tcp_transport.h"

#include <gtest/gtest.h>

#include "tests/support/memory_server.h"

namespace ems::fabric {
namespace {

TEST(TcpTransportTest, CarriesMessages) {
  testing::MemoryServer server;
  ASSERT_TRUE(server.status.ok());
  TcpTransport tcp;
  const auto channel = tcp.Connect(*ParseAddress(server.address()), std::chrono::seconds(2));
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_EQ((*channel)->hello().boot_id, server.store.boot_id);
}

TEST(TcpTransportTest, SharesNoMemory) {
  TcpTransport tcp;
  EXPECT_EQ(tcp.Allocate(4096).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(tcp.Reach({}).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(tcp.ReachToWrite({}).status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ems::fabric
