#pragma once
// Messages over sockets; no memory is shared.
#include "fabric/transport.h"

namespace ems::fabric {

// Threading: thread-safe.
class TcpTransport final : public Transport {
 public:
  std::string_view name() const override { return "tcp"; }
  Result<std::unique_ptr<LocalMemory>> Allocate(uint64_t bytes) override;
  Result<std::unique_ptr<RemoteMemory>> Reach(MemoryGrant grant) override;
  Result<std::unique_ptr<WritableMemory>> ReachToWrite(MemoryGrant grant) override;
  Result<std::unique_ptr<RpcChannel>> Connect(const Address& address, Duration timeout) override;
};

}  // namespace ems::fabric
