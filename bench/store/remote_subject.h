#pragma once
// EMS as a side of a comparison, as clients on other hosts have it: over TCP alone, whatever shares
// a host with the server. All callers use one Client, which has a connection for each of them; a
// value's checksum is computed by its Put and compared by each Get.
#include <memory>
#include <string>
#include <vector>

#include "bench/sides/subject.h"
#include "mp_sdk/client.h"

namespace ems::bench {

class RemoteSubject final : public Subject {
 public:
  // `client`: of TransportChoice::kTcp; must outlive this.
  RemoteSubject(Client* client, std::vector<pid_t> server_pids)
      : client_(client), server_pids_(std::move(server_pids)) {}
  const std::string& name() const override { return name_; }
  std::vector<SideOp> ops() const override { return {SideOp::kGet, SideOp::kPutOrdinary}; }
  SideOp load_op() const override { return SideOp::kPutOrdinary; }
  std::vector<pid_t> server_pids() const override { return server_pids_; }
  Status Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;
  // Takes the values out of the server again. Errors: of the first that would not go
  Status RemoveAll(const ValueSet& values);

 private:
  const std::string name_ = "EMS";
  Client* const client_;
  const std::vector<pid_t> server_pids_;
};

}  // namespace ems::bench
