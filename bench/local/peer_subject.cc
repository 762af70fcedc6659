#include "bench/local/peer_subject.h"

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

Status PeerSubject::Call(LocalOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
                         uint64_t count) {
  PeerClient& client = clients_[caller];
  for (uint64_t i = first; i < first + count; ++i) {
    const std::string_view key = stretch.keys[i];
    const Status status = op == LocalOp::kGet ? client.Get(key, stretch.Buffer(i))
                                              : client.Set(key, stretch.Buffer(i));
    if (!status.ok()) [[unlikely]]
      return status;
  }
  return OkStatus();
}

}  // namespace ems::bench
