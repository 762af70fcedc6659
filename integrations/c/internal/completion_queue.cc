#include "integrations/c/internal/completion_queue.h"

#include <utility>

#include "common/check.h"

namespace ems::capi {

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::Create(uint32_t depth) {
  EMS_ASSIGN_OR_RETURN(batches::DoneSignal signal, batches::DoneSignal::Open());
  return std::unique_ptr<CompletionQueue>(new CompletionQueue(depth, std::move(signal)));
}

CompletionQueue::CompletionQueue(uint32_t depth, batches::DoneSignal signal)
    : signal_(std::move(signal)) {
  EMS_CHECK(depth > 0, "a queue without a place");
  auto state = state_.Lock();
  state->ring.resize(depth);
}

bool CompletionQueue::Begin() {
  auto state = state_.Lock();
  if (state->places == state->ring.size()) return false;
  ++state->places;
  return true;
}

void CompletionQueue::Abandon() {
  auto state = state_.Lock();
  EMS_CHECK(state->places > state->size, "a place was given back that nobody had");
  --state->places;
}

void CompletionQueue::End(uint64_t tag, const Status& status, uint64_t value) {
  {
    auto state = state_.Lock();
    EMS_CHECK(state->size < state->places, "a call ended that had not begun");
    Done& done = state->ring[(state->first + state->size) % state->ring.size()];
    done.tag = tag;
    done.value = value;
    done.status = status;  // shares the text
    ++state->size;
  }
  signal_.Set();
}

size_t CompletionQueue::Poll(std::span<ems_completion> out, Status* failed) {
  signal_.Reset();
  size_t taken = 0;
  bool more = false;
  {
    auto state = state_.Lock();
    EMS_CHECK(state->size <= state->places, "{} are done of {}", state->size, state->places);
    for (; taken < out.size() && state->size > 0; ++taken) {
      Done& done = state->ring[state->first];
      out[taken] = {.tag = done.tag,
                    .code = static_cast<ems_status>(done.status.code()),
                    .reserved = 0,
                    .value = done.value};
      if (!done.status.ok()) *failed = std::move(done.status);
      done.status = OkStatus();
      state->first = (state->first + 1) % state->ring.size();
      --state->size;
      --state->places;
    }
    more = state->size > 0;
  }
  if (more) signal_.Set();
  return taken;
}

}  // namespace ems::capi
