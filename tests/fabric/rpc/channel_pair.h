#pragma once
// A channel and the raw other end of its socket.
#include <sys/socket.h>

#include <memory>
#include <optional>

#include "common/check.h"
#include "fabric/rpc/rpc_channel.h"
#include "tests/support/wire_peer.h"

namespace ems::fabric {

struct ChannelPair {
  ChannelPair() {
    int fds[2];
    EMS_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    channel = std::make_unique<RpcChannel>(Fd(fds[0]));
    peer.emplace(Fd(fds[1]));
  }
  std::unique_ptr<RpcChannel> channel;
  std::optional<testing::WirePeer> peer;
};

}  // namespace ems::fabric
