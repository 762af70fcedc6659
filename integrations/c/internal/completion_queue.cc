#include "integrations/c/internal/completion_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "fabric/socket.h"

namespace ems::capi {

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::Create(uint32_t depth) {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) {
    return Error(StatusCode::kResourceExhausted, "no eventfd: {}", fabric::ErrnoText(errno));
  }
  return std::unique_ptr<CompletionQueue>(new CompletionQueue(depth, fd));
}

CompletionQueue::CompletionQueue(uint32_t depth, int fd) : fd_(fd) {
  auto state = state_.Lock();
  state->ring.resize(depth);
}

CompletionQueue::~CompletionQueue() { ::close(fd_); }

bool CompletionQueue::Begin() {
  auto state = state_.Lock();
  if (state->places == state->ring.size()) return false;
  ++state->places;
  ++state->running;
  return true;
}

void CompletionQueue::Abandon() {
  auto state = state_.Lock();
  --state->places;
  --state->running;
  // Under the lock: whoever waits may destroy this as soon as it is free.
  if (state->running == 0) idle_.notify_all();
}

void CompletionQueue::End(uint64_t tag, const Status& status, uint64_t value) {
  {
    auto state = state_.Lock();
    Done& done = state->ring[(state->first + state->size) % state->ring.size()];
    done.tag = tag;
    done.value = value;
    done.status = status;  // shares the text
    ++state->size;
  }
  Signal();
  auto state = state_.Lock();
  --state->running;
  if (state->running == 0) idle_.notify_all();
}

size_t CompletionQueue::Poll(std::span<ems_completion> out, Status* failed) {
  // Reset first, look afterwards: what comes in between signals again.
  uint64_t signals = 0;
  while (::read(fd_, &signals, sizeof(signals)) < 0 && errno == EINTR) {
  }
  size_t taken = 0;
  bool more = false;
  {
    auto state = state_.Lock();
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
  if (more) Signal();
  return taken;
}

void CompletionQueue::WaitIdle() {
  auto state = state_.Lock();
  state.Wait(idle_, [](const State& s) { return s.running == 0; });
}

void CompletionQueue::Signal() const {
  const uint64_t one = 1;
  // It fails only when 2^64 - 2 signals were not read: it is readable then.
  while (::write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace ems::capi
