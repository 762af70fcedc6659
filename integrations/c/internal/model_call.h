#pragma once
// A wait or a load of a model as one call: checked, run now or later.
//
// Invariant: behind its end no memory of the caller is touched, and no callback comes. Bound: its
// deadline, behind which reads that are under way may go on for as long as they were given.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "integrations/c/ems.h"
#include "integrations/c/internal/call_queue.h"
#include "integrations/c/internal/model_arguments.h"
#include "integrations/c/internal/models_core.h"

namespace ems::capi {

// Arguments as they came, so far unchecked.
struct WaitArguments {
  const char* name = nullptr;
  uint32_t timeout_ms = 0;
  ems_model_on_progress on_progress = nullptr;
  void* user = nullptr;
  ems_model_info* info = nullptr;
};
// One of: buffers, room, folder, tensors.
enum class LoadInto { kBuffers, kRooms, kFolder, kTensors };
struct LoadArguments {
  const char* name = nullptr;
  LoadInto into = LoadInto::kFolder;
  const ems_model_buffer* buffers = nullptr;
  size_t buffer_count = 0;
  ems_model_room room = nullptr;
  void* user = nullptr;
  const char* folder = nullptr;
  const ems_model_tensors* tensors = nullptr;
  const ems_model_load_options* options = nullptr;
  ems_model_stats* stats = nullptr;
};

class ModelCall final : public Call {
 public:
  // The core must outlive it.   Errors: kInvalidArgument
  static Result<std::unique_ptr<ModelCall>> MakeWait(ModelsCore* core,
                                                     const WaitArguments& arguments);
  static Result<std::unique_ptr<ModelCall>> MakeLoad(ModelsCore* core,
                                                     const LoadArguments& arguments);

  // Value: of loads, bytes.
  Outcome Run(Duration timeout) override;
  void Refuse(ems_status) noexcept override {}
  Duration timeout() const { return timeout_; }

 private:
  using Work = std::function<Outcome(Deadline)>;
  ModelCall(Duration timeout, Work work) : timeout_(timeout), work_(std::move(work)) {}

  const Duration timeout_;
  const Work work_;
};

}  // namespace ems::capi
