#pragma once
// Another cache as a side of the comparison: a connection for each caller, a value a request.
// Neither redis nor memcached keeps a checksum of a value.
#include <memory>
#include <string>
#include <vector>

#include "bench/sides/peer_client.h"
#include "bench/sides/peer_server.h"
#include "bench/sides/subject.h"

namespace ems::bench {

class PeerSubject final : public Subject {
 public:
  // Errors: as PeerClient::Connect
  static Result<std::unique_ptr<PeerSubject>> Connect(std::string name, PeerKind kind,
                                                      const std::string& address, pid_t pid,
                                                      uint32_t callers);
  // The same with a process of its own, which has room for `values`. `options`: its kind, transport
  // and threads. Errors: as PeerServer::Start and Connect
  static Result<std::unique_ptr<PeerSubject>> Start(std::string name, PeerServerOptions options,
                                                    const ValueSet& values, uint32_t callers);
  const std::string& name() const override { return name_; }
  std::vector<SideOp> ops() const override { return {SideOp::kGet, SideOp::kPutOrdinary}; }
  SideOp load_op() const override { return SideOp::kPutOrdinary; }
  std::vector<pid_t> server_pids() const override { return {pid_}; }
  // "redis-server 7.0.15"; of one that was started.
  const std::string& version() const { return server_->version(); }
  Status Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;

 private:
  PeerSubject(std::string name, pid_t pid) : name_(std::move(name)), pid_(pid) {}
  const std::string name_;
  const pid_t pid_;
  std::unique_ptr<PeerServer> server_;  // null: another's
  std::vector<PeerClient> clients_;     // by caller
};

}  // namespace ems::bench
