#pragma once
// Calls that run later: each begins on a thread of the client, or ends without having begun, when
// its deadline passes first or its queue is closed.
//
// Invariant: every call that was accepted ends exactly once, and within its deadline even when all
// threads are busy with calls that may take longer. A call that ended without having begun has
// touched no memory but its codes. Bound: the queue's depth.
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "common/submitted_call.h"
#include "common/thread_pool.h"
#include "integrations/c/internal/completion_queue.h"

namespace ems::capi {

struct Outcome {
  Status status;
  uint64_t value = 0;
};

// Threading: one thread at a time runs or refuses it.
class Call {
 public:
  virtual ~Call() = default;
  // Does it within `timeout` and says so in the caller's codes.
  virtual Outcome Run(Duration timeout) = 0;
  // It will not run: only the caller's codes are told.
  virtual void Refuse(ems_status code) noexcept = 0;
};

// Threading: thread-safe; Close last, once.
class CallQueue final {
 public:
  // Runs work on another thread, soon. False, and nothing done, when too much waits.
  using Submitter = std::function<bool(std::function<void()>&&)>;

  // Errors: kResourceExhausted  no descriptor
  static Result<std::unique_ptr<CallQueue>> Create(uint32_t depth, Submitter submit);
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Never blocks. Errors: kResourceExhausted  the queue, or that of the threads, is full
  Status Submit(uint64_t tag, Duration timeout, std::unique_ptr<Call> call) {
    return Submit(tag, timeout, std::move(call), submit_);
  }
  // On other threads than the queue's own; they must run what they took before they go.
  Status Submit(uint64_t tag, Duration timeout, std::unique_ptr<Call> call,
                const Submitter& threads);
  CompletionQueue& completions() { return *completions_; }
  // Cancels calls that have not begun: none begins any more, also where a thread gets free
  // meanwhile. Waits for those that have.
  void Close();

 private:
  struct Ticket;
  using Waiting = std::multimap<TimePoint, std::shared_ptr<Ticket>>;
  struct State {
    Waiting waiting;  // have not begun, by deadline
    bool closing = false;
  };

  CallQueue(std::unique_ptr<CompletionQueue> completions, Submitter submit);
  void Begin(Ticket* ticket);
  // It waits no more.
  void Forget(Ticket* ticket);
  // Takes the first one from those that wait, if its deadline is not after `until`.
  static std::shared_ptr<Ticket> TakeFirst(State* state, TimePoint until);
  void Watch();

  const std::unique_ptr<CompletionQueue> completions_;
  const Submitter submit_;
  CallGate gate_;
  Guarded<State> state_;
  std::condition_variable changed_;
  Thread watcher_;  // ends what waited too long
};

}  // namespace ems::capi
