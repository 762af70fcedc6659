#pragma once
// A load or save of paged KV blocks as one call: checked, run now or later, its results told in the
// caller's array; or begun layer by layer.
//
// Invariant: as ContextCall's. Bound: EMS_BATCH_MAX blocks.
#include <memory>
#include <vector>

#include "common/status.h"
#include "ems_context/layer_load.h"
#include "ems_context/paged_block.h"
#include "ems_context/save_policy.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/handles.h"

namespace ems::capi {

enum class KvKind { kLoad, kSave };

// Arguments as they came, so far unchecked.
struct KvArguments {
  ems_kv_blocks blocks{};
  uint32_t phase = EMS_PHASE_PREFILL;  // of saves
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
  const ems_kv_saved& saved() const { return saved_; }  // after a save
  // The load, layer by layer; its time is running from here.
  context::LayerLoad BeginLayers() &&;

 private:
  KvCall(std::shared_ptr<KvCore> core, KvKind kind, const KvArguments& arguments)
      : core_(std::move(core)),
        kind_(kind),
        codes_(arguments.codes),
        count_(arguments.blocks.count) {}
  Status Check(const KvArguments& arguments);
  Status AddGroup(const ems_kv_slots& group);

  const std::shared_ptr<KvCore> core_;
  const KvKind kind_;
  ems_status* const codes_;
  const size_t count_;
  context::CallOptions options_;
  context::SavePhase phase_ = context::SavePhase::kPrefill;
  ems_kv_saved saved_{};
  std::vector<context::PagedBlock> blocks_;
};

// Tells a load's results in `codes`, NULL or [blocks]. Value: leading blocks.
Outcome TellLoad(const context::LoadResult& result, ems_status* codes);

}  // namespace ems::capi
