#pragma once
// The server's end of a task's stream of events. The task does not wait for the reader: what
// happens while a message is under way is merged into the next one.
//
// Invariant: at most one write, or the end, is under way; a task that was started is cancelled when
// its reader goes. Bound: one message on its way, one that grows; how far it can grow is for the
// task to know.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/guarded.h"
#include "common/status.h"
#include "pdc/rpc/internal/call_permit.h"
#include "pdc/rpc/internal/grpc_server.h"
#include "proto/status_codec.h"

namespace ems::pdc::rpc {

// Threading: thread-safe. It keeps itself alive from Begin until gRPC is done with it.
template <typename Event>
class EventWriter : public grpc::ServerWriteReactor<Event>,
                    public std::enable_shared_from_this<EventWriter<Event>> {
 public:
  // `permit`: null when there are as many calls as may be.
  explicit EventWriter(std::unique_ptr<CallPermit> permit) : permit_(std::move(permit)) {}

  // Starts the task by `start()`, unless the call is one too many or has no end in time. Not OK:
  // the stream ends so. Returns what gRPC is to be given.
  template <typename Start>
  EventWriter* Begin(const grpc::CallbackServerContext& context, Start start) {
    {
      auto state = state_.Lock();
      state->self = this->shared_from_this();
    }
    Status started = CheckDeadline(context);
    if (permit_ == nullptr)
      started = Error(StatusCode::kResourceExhausted, "as many tasks as may be are under way");
    if (started.ok()) started = start();
    if (!started.ok()) Close(started);
    return this;  // OnDone comes after this returns
  }
  // The task has been started: `cancel` ends it when the reader goes, or has gone meanwhile. Once.
  void CancelWith(std::function<void()> cancel) {
    {
      auto state = state_.Lock();
      if (!state->cancelled) {
        state->cancel = std::move(cancel);
        return;
      }
    }
    cancel();
  }
  // `merge(Event*)` adds what happened. Dropped once the stream has ended.
  template <typename Merge>
  void Add(Merge merge) {
    {
      auto state = state_.Lock();
      if (state->cancelled || state->end) return;
      merge(&state->next);
      state->waiting = true;
    }
    Pump();
  }
  // Ends the stream after what was added. The first one counts.
  void Close(const Status& how) {
    {
      auto state = state_.Lock();
      if (!state->end) state->end = how;
    }
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      auto state = state_.Lock();
      EMS_CHECK(state->busy, "the end of a write that had not begun");
      state->busy = false;
      if (!ok) state->cancelled = true;
    }
    Pump();
  }
  void OnCancel() override {
    std::function<void()> cancel;
    {
      auto state = state_.Lock();
      state->cancelled = true;
      cancel.swap(state->cancel);
    }
    if (cancel) cancel();
    Pump();
  }
  void OnDone() override {
    std::shared_ptr<EventWriter> self;
    auto state = state_.Lock();
    self.swap(state->self);
    state.Unlock();
  }

 private:
  struct State {
    bool busy = false;       // a write is under way
    bool waiting = false;    // `next` has something
    bool finished = false;   // Finish has been called
    bool cancelled = false;  // nobody reads any more
    std::function<void()> cancel;
    std::optional<Status> end;
    Event next;
    std::shared_ptr<EventWriter> self;
  };

  void Pump() {
    const std::shared_ptr<EventWriter> alive = this->shared_from_this();
    auto state = state_.Lock();
    if (state->busy || state->finished) return;
    if (state->waiting && !state->cancelled) {
      state->waiting = false;
      state->busy = true;
      writing_ = std::exchange(state->next, Event());
      state.Unlock();
      return this->StartWrite(&writing_);
    }
    if (!state->cancelled && !state->end) return;
    state->finished = true;
    const Status end = state->cancelled && !state->end
                           ? Error(StatusCode::kCancelled, "the caller is gone")
                           : *state->end;
    state.Unlock();
    this->Finish(ToGrpc(end));
  }

  const std::unique_ptr<CallPermit> permit_;
  Guarded<State> state_;
  Event writing_;  // of the write under way
};

}  // namespace ems::pdc::rpc
