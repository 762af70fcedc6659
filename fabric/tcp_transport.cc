#include "fabric/tcp_transport.h"

namespace ems::fabric {

Result<std::unique_ptr<LocalMemory>> TcpTransport::Allocate(uint64_t bytes) {
  return Error(StatusCode::kUnimplemented, "tcp carries messages only: {} bytes cannot be shared",
               bytes);
}

Result<std::unique_ptr<RemoteMemory>> TcpTransport::Reach(MemoryGrant grant) {
  return Error(StatusCode::kUnimplemented,
               "tcp carries messages only: {} bytes of a peer cannot be read one-sided",
               grant.bytes);
}

Result<std::unique_ptr<WritableMemory>> TcpTransport::ReachToWrite(MemoryGrant grant) {
  return Error(StatusCode::kUnimplemented,
               "tcp carries messages only: {} bytes of a peer cannot be written one-sided",
               grant.bytes);
}

Result<std::unique_ptr<RpcChannel>> TcpTransport::Connect(const Address& address,
                                                          Duration timeout) {
  return RpcChannel::Open(address, timeout);
}

}  // namespace ems::fabric
