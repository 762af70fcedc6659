#pragma once
// The completion queue of the C API: calls that have ended and were not polled yet, in the order in
// which they ended, and the eventfd that reports them.
//
// Invariant: places taken = calls that have not ended + completions in the ring ≤ depth, so End
// always finds room and never allocates. After a completion is in the ring the descriptor is, or is
// about to be, readable. Bound: `depth` places, all allocated at the start.
#include <memory>
#include <span>
#include <vector>

#include "common/guarded.h"
#include "common/status.h"
#include "integrations/batches/done_signal.h"
#include "integrations/c/ems.h"

namespace ems::capi {

// Threading: thread-safe.
class CompletionQueue final {
 public:
  // Errors: kResourceExhausted  no descriptor
  static Result<std::unique_ptr<CompletionQueue>> Create(uint32_t depth);
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  int fd() const { return signal_.fd(); }
  // Takes a place for a call. False when all are taken.
  [[nodiscard]] bool Begin();
  // Gives it back: the call was not accepted after all.
  void Abandon();
  // The call is over. Cost: a leaf lock and a write(2); allocates nothing.
  void End(uint64_t tag, const Status& status, uint64_t value);
  // Takes up to out.size() completions and returns how many; `failed` is the status of the last one
  // that is not ok. Never blocks.
  size_t Poll(std::span<ems_completion> out, Status* failed);

 private:
  struct Done {
    uint64_t tag = 0;
    uint64_t value = 0;
    Status status;
  };
  struct State {
    std::vector<Done> ring;
    size_t first = 0, size = 0;
    size_t places = 0;  // taken
  };
  CompletionQueue(uint32_t depth, batches::DoneSignal signal);

  const batches::DoneSignal signal_;
  Guarded<State> state_;
};

}  // namespace ems::capi
