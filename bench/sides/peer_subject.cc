#include "bench/sides/peer_subject.h"

namespace ems::bench {

Result<std::unique_ptr<PeerSubject>> PeerSubject::Connect(std::string name, PeerKind kind,
                                                          const std::string& address, pid_t pid,
                                                          uint32_t callers) {
  std::unique_ptr<PeerSubject> made(new PeerSubject(std::move(name), pid));
  for (uint32_t i = 0; i < callers; ++i) {
    EMS_ASSIGN_OR_RETURN(PeerClient client, PeerClient::Connect(kind, address));
    made->clients_.push_back(std::move(client));
  }
  return made;
}

Result<std::unique_ptr<PeerSubject>> PeerSubject::Start(std::string name, PeerServerOptions options,
                                                        const ValueSet& values, uint32_t callers) {
  // memcached's classes of items waste a fifth; an overwritten value is there twice for a while.
  options.memory_bytes =
      2 * values.count() * values.value_bytes() + 16 * values.value_bytes() + 256 * kMiB;
  options.value_bytes_max = values.value_bytes();
  EMS_ASSIGN_OR_RETURN(std::unique_ptr<PeerServer> server, PeerServer::Start(options));
  EMS_ASSIGN_OR_RETURN(
      auto made, Connect(std::move(name), options.kind, server->address(), server->pid(), callers));
  made->server_ = std::move(server);
  return made;
}

Status PeerSubject::Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
                         uint64_t count) {
  PeerClient& client = clients_[caller];
  for (uint64_t i = first; i < first + count; ++i) {
    const std::string_view key = stretch.keys[i];
    const Status status = op == SideOp::kGet ? client.Get(key, stretch.Buffer(i))
                                             : client.Set(key, stretch.Buffer(i));
    if (!status.ok()) [[unlikely]]
      return status;
  }
  return OkStatus();
}

}  // namespace ems::bench
