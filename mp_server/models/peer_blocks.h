#pragma once
// Blocks of models that other servers keep, read over the data plane.
//
// Bound: a connection to each server of the view.
#include <map>
#include <memory>
#include <string>

#include "cluster/view_cache.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "fabric/rpc/rpc_channel.h"

namespace ems::server {

// Threading: one thread (a worker); blocks on the network.
class PeerBlocks final {
 public:
  // The object under `key`, whose length is that of `into`, from the owner of `slot` in `view`.
  // False: the owner has none, or what it had was damaged and has been evicted. What does not match
  // its checksum is asked for once more. Errors: kUnavailable  it cannot be asked, or is another
  // server's by now    kDeadlineExceeded    kDataLoss  damaged on the way, twice
  Result<bool> Read(const DhtView& view, NamespaceRef ns, SlotId slot, const std::string& key,
                    MutableBytes into, Deadline deadline);

 private:
  Result<bool> Ask(const DhtView& view, NamespaceRef ns, SlotId slot, const std::string& key,
                   uint16_t flags, MutableBytes into, Deadline deadline);

  std::map<NodeId, std::unique_ptr<fabric::RpcChannel>> channels_;
};

}  // namespace ems::server
