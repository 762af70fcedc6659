#pragma once
// A look-up, load or save of KV blocks as one call: checked, run now or later, its results told in
// the caller's array.
//
// Invariant: the array says the same as the outcome; a failed load never counts as leading. Bound:
// EMS_BATCH_MAX blocks of EMS_PIECES_MAX pieces.
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/handles.h"

namespace ems::capi {

enum class ContextKind { kLookup, kLoad, kSave };

// Arguments as they came, so far unchecked.
struct ContextArguments {
  const void* keys = nullptr;
  size_t count = 0;
  const ems_pieces* blocks = nullptr;  // of loads and saves
  const ems_call_options* options = nullptr;
  ems_status* codes = nullptr;
};

class ContextCall final : public Call {
 public:
  // Keys and lists of pieces are copied.  Errors: kInvalidArgument  names the block
  static Result<std::unique_ptr<ContextCall>> Make(std::shared_ptr<ContextCore> core,
                                                   ContextKind kind,
                                                   const ContextArguments& arguments);

  // Value: leading blocks; of a save, blocks that the pool has now.
  Outcome Run(Duration timeout) override;
  void Refuse(ems_status code) noexcept override;

  // With the context's default, as the whole call may take.
  Duration timeout() const;
  size_t stored_blocks() const { return stored_blocks_; }  // after a save

 private:
  ContextCall(std::shared_ptr<ContextCore> core, ContextKind kind,
              const ContextArguments& arguments)
      : core_(std::move(core)), kind_(kind), codes_(arguments.codes), count_(arguments.count) {}
  Status Check(const ContextArguments& arguments);

  const std::shared_ptr<ContextCore> core_;
  const ContextKind kind_;
  ems_status* const codes_;
  const size_t count_;
  context::CallOptions options_;
  uint64_t bytes_ = 0;
  size_t stored_blocks_ = 0;
  std::vector<std::string> keys_;
  std::vector<ConstBytes> const_parts_;  // reserved in advance: do not move
  std::vector<MutableBytes> mutable_parts_;
  std::vector<ConstBuffers> values_;
  std::vector<MutableBuffers> rooms_;
};

}  // namespace ems::capi
