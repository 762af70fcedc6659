#pragma once
// The server's end of a stream of events whose source does not wait for the reader: what happens
// while a message is under way is merged into the next one.
//
// Invariant: at most one write, or the end, is under way. Bound: one message on its way, one that
// grows; how far it can grow is for the source to know.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/guarded.h"
#include "common/status.h"
#include "proto/status_codec.h"

namespace ems::pdc::rpc {

// Threading: thread-safe. It keeps itself alive from Begin until gRPC is done with it.
template <typename Event>
class EventWriter : public grpc::ServerWriteReactor<Event>,
                    public std::enable_shared_from_this<EventWriter<Event>> {
 public:
  void Begin() {
    auto state = state_.Lock();
    state->self = this->shared_from_this();
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
      state->busy = false;
      if (!ok) state->cancelled = true;
    }
    Pump();
  }
  void OnCancel() override {
    {
      auto state = state_.Lock();
      state->cancelled = true;
    }
    OnGone();
    Pump();
  }
  void OnDone() override {
    std::shared_ptr<EventWriter> self;
    auto state = state_.Lock();
    self.swap(state->self);
    state.Unlock();
  }

 protected:
  // The reader has gone, or its time is over. Without a lock.
  virtual void OnGone() = 0;

 private:
  struct State {
    bool busy = false;       // a write is under way
    bool waiting = false;    // `next` has something
    bool finished = false;   // Finish has been called
    bool cancelled = false;  // nobody reads any more
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

  Guarded<State> state_;
  Event writing_;  // of the write under way
};

}  // namespace ems::pdc::rpc
