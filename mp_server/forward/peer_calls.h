#pragma once
// Calls to the other servers of the view: where they are, a breaker for each, and connections that
// are kept from one call to the next.
//
// Bound: 4096 servers, and those of the view; a connection to each and holder of Channels.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cluster/dht_view.h"
#include "common/circuit_breaker.h"
#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/status.h"
#include "fabric/rpc/rpc_channel.h"

namespace ems::server {

// Threading: thread-safe.
class PeerCalls final {
 public:
  // Connections of one thread, by server: where it was when it was connected, and the channel.
  using Channels = std::map<NodeId, std::pair<std::string, std::unique_ptr<fabric::RpcChannel>>>;

  // Where servers are, from now on. Those that the view does not have are not called.
  void SetNodes(const DhtView& view);
  // Null: the server is in no view any more.
  std::shared_ptr<CircuitBreaker> BreakerOf(NodeId node);
  // Calls `ask` with a connection to the server, and tells its breaker how it went; whether it may
  // be called is the caller's to ask. Blocks up to the deadline.
  // Errors: those of `ask` and of RpcChannel::Open    kUnavailable  it is in no view any more
  Status Call(NodeId node, Deadline deadline, Channels* channels,
              const std::function<Status(fabric::RpcChannel*)>& ask);

 private:
  struct Peer {
    std::string address;
    bool shown = false;  // in the last view; a server that is gone is not asked
    std::shared_ptr<CircuitBreaker> breaker = std::make_shared<CircuitBreaker>();
  };
  struct State {
    std::map<NodeId, Peer> peers;
    ClusterId cluster;
  };
  Guarded<State> state_;
};

}  // namespace ems::server
