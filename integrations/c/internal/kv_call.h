#pragma once
// A load or save of paged KV blocks as one call: checked, run now or later, its results told in the
// caller's array.
//
// Invariant: as ContextCall's. Bound: EMS_BATCH_MAX blocks; EMS_KV_TENSORS_MAX tensors.
#include <memory>
#include <vector>

#include "common/status.h"
#include "ems_context/kv_layout.h"
#include "ems_context/paged_block.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/handles.h"

namespace ems::capi {

// Errors: kInvalidArgument  names the tensor
Result<context::KvLayout> ToKvLayout(const ems_kv_tensor* tensors, size_t count);

enum class KvKind { kLoad, kSave };

// Arguments as they came, so far unchecked.
struct KvArguments {
  const void* keys = nullptr;
  size_t count = 0;
  const int64_t* slots = nullptr;
  size_t slot_count = 0;
  const ems_call_options* options = nullptr;
  ems_status* codes = nullptr;
};

class KvCall final : public Call {
 public:
  // Errors: kInvalidArgument, kOutOfRange  no such slot
  static Result<std::unique_ptr<KvCall>> Make(std::shared_ptr<KvCore> core, KvKind kind,
                                              const KvArguments& arguments);

  // Value: leading blocks; of a save, blocks that the pool has now.
  Outcome Run(Duration timeout) override;
  void Refuse(ems_status code) noexcept override;

  // With the context's default, as the whole call may take.
  Duration timeout() const;
  size_t stored_blocks() const { return stored_blocks_; }  // after a save

 private:
  KvCall(std::shared_ptr<KvCore> core, KvKind kind, const KvArguments& arguments)
      : core_(std::move(core)), kind_(kind), codes_(arguments.codes), count_(arguments.count) {}
  Status Check(const KvArguments& arguments);

  const std::shared_ptr<KvCore> core_;
  const KvKind kind_;
  ems_status* const codes_;
  const size_t count_;
  context::CallOptions options_;
  size_t stored_blocks_ = 0;
  std::vector<context::PagedBlock> blocks_;
};

}  // namespace ems::capi
