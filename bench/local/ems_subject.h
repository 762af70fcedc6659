#pragma once
// EMS as a side of the comparison: one Client, used by all callers.
#include <memory>
#include <string>
#include <vector>

#include "bench/sides/subject.h"
#include "mp_sdk/client.h"

namespace ems::bench {

class EmsSubject final : public Subject {
 public:
  // Takes `registered_bytes` from the client's AllocateBuffer. Client and values must outlive this.
  // Errors: as AllocateBuffer
  static Result<std::unique_ptr<EmsSubject>> Make(Client* client, std::vector<pid_t> server_pids,
                                                  uint64_t registered_bytes,
                                                  const ValueSet* values);
  const std::string& name() const override { return name_; }
  std::vector<SideOp> ops() const override;
  SideOp load_op() const override { return SideOp::kPut; }
  std::vector<pid_t> server_pids() const override { return server_pids_; }
  MutableBytes PutMemory(SideOp op) const override;
  uint64_t one_sided() const override { return client_->stats().one_sided; }
  Status Call(SideOp op, uint32_t caller, const Stretch& stretch, uint64_t first,
              uint64_t count) override;
  Status View(uint64_t object, const std::function<void(ConstBytes)>& look) override;
  // Takes all its values out of the servers again. Errors: of the first that would not go
  Status RemoveAll();

 private:
  EmsSubject(Client* client, std::vector<pid_t> server_pids, const ValueSet* values);
  Status Copy(std::string_view key, MutableBytes into, Verify verify);
  Status Touch(std::string_view key);
  Status Lookup(uint64_t object);
  Status PutMany(const Stretch& stretch, uint64_t first, uint64_t count);

  const std::string name_ = "EMS";
  Client* const client_;
  const std::vector<pid_t> server_pids_;
  const ValueSet* const values_;
  StagingBuffer registered_;
  // All keys; then, so that kLookupKeys can be taken from any of them: the first ones again, or,
  // where there are fewer keys than that, keys that are not stored.
  std::vector<std::string> strange_keys_;
  std::vector<KeyItem> lookup_items_;
};

}  // namespace ems::bench
