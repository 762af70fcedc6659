#pragma once
// Static stability: without the controller the pool goes on as long as a majority of the servers of
// the installed view answer and have that very view. A cut-off minority fences itself.
#include <map>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "fabric/rpc_channel.h"
#include "mp_controller/view/dht_view.h"

namespace ems::server {

// Threading: one thread ("ems-ctl").
class PeerQuorum final {
 public:
  // Asks the other servers of `view`, all at once, which view they have. True when they and `self`
  // are a majority at its version. Blocks up to `patience`.
  bool Ask(const DhtView& view, NodeId self, Duration patience);

 private:
  std::map<NodeId, std::unique_ptr<fabric::RpcChannel>>
      channels_;  // at most one a server of the view
};

}  // namespace ems::server
