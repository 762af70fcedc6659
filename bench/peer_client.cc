#include "bench/peer_client.h"

#include "bench/memcached_client.h"
#include "bench/reply_socket.h"
#include "bench/resp_client.h"

namespace ems::bench {

std::string_view PeerName(PeerKind kind) {
  return kind == PeerKind::kRedis ? "redis" : "memcached";
}

Result<std::unique_ptr<PeerClient>> ConnectPeer(PeerKind kind, const std::string& address) {
  EMS_ASSIGN_OR_RETURN(ReplySocket socket, ReplySocket::Connect(address));
  std::unique_ptr<PeerClient> client;
  if (kind == PeerKind::kRedis) {
    client = std::make_unique<RespClient>(std::move(socket));
  } else {
    client = std::make_unique<MemcachedClient>(std::move(socket));
  }
  return client;
}

}  // namespace ems::bench
