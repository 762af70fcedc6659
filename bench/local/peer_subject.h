#pragma once
// Another cache as a side of the comparison: a connection for each caller, a value a request.
// Neither redis nor memcached keeps a checksum of a value.
#include <memory>
#include <string>
#include <vector>

#include "bench/local/peer_client.h"
#include "bench/local/subject.h"

namespace ems::bench {

class PeerSubject final : public Subject {
 public:
  // Errors: as PeerClient::Connect
  static Result<std::unique_ptr<PeerSubject>> Connect(std::string name, PeerKind kind,
                                                      const std::string& address, pid_t pid,
                                                      uint32_t callers);
  const std::string& name() const override { return name_; }
  std::vector<LocalOp> ops() const override { return {LocalOp::kGet, LocalOp::kPutOrdinary}; }
  LocalOp load_op() const override { return LocalOp::kPutOrdinary; }
  std::vector<pid_t> server_pids() const override { return {pid_}; }
  Status Call(LocalOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;

 private:
  PeerSubject(std::string name, pid_t pid) : name_(std::move(name)), pid_(pid) {}
  const std::string name_;
  const pid_t pid_;
  std::vector<PeerClient> clients_;  // by caller
};

}  // namespace ems::bench
