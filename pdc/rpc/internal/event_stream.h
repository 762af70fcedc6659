#pragma once
// The client's end of a stream of events: one task at a peer, from its call to its last event.
//
// Invariant: OnLost is called exactly once, after the last Take, on all streams that have begun.
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cluster/control_channel.h"
#include "common/guarded.h"
#include "common/logging.h"
#include "common/status.h"
#include "pdc/rpc/internal/stream_table.h"
#include "pdc/rpc/internal/wire.h"
#include "proto/status_codec.h"

namespace ems::pdc::rpc {

// The server has its own deadline, and a moment to say so.
inline constexpr Duration kDeadlineGrace = std::chrono::milliseconds(500);

// Why a stream ended that did not say so itself: what can be tried elsewhere is kUnavailable.
inline Status EndOfStream(const std::string& peer, const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return Error(StatusCode::kUnavailable, "{} ended a stream early", peer);
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kInvalidArgument:
    case StatusCode::kResourceExhausted:
      return Prefixed(status, peer);
    default:
      return Error(StatusCode::kUnavailable, "{}: {}", peer, ToString(status));
  }
}

// Threading: thread-safe. It keeps itself alive from Begin until gRPC is done with it.
template <typename Event>
class EventStream : public grpc::ClientReadReactor<Event>,
                    public OpenStream,
                    public std::enable_shared_from_this<EventStream<Event>> {
 public:
  EventStream(std::string peer, std::shared_ptr<StreamTable> table, Deadline deadline)
      : peer_(std::move(peer)), table_(std::move(table)) {
    const TimePoint latest = Deadline::After(kTaskTimeMax).at();
    SetDeadline(Deadline(std::min(deadline.at(), latest) + kDeadlineGrace), &context_);
  }

  // `call(ClientContext*, reactor)` makes the call. Once it is in the table.
  template <typename Call>
  void Begin(Call call) {
    {
      auto state = state_.Lock();
      state->self = this->shared_from_this();
    }
    call(&context_, this);
    this->StartRead(&event_);
    this->StartCall();
  }

  void Interrupt(const Status& why) override {
    {
      auto state = state_.Lock();
      if (!state->why.ok()) return;
      state->why = why;
    }
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const Status sense = Take(event_);
    if (sense.ok()) return this->StartRead(&event_);
    EMS_LOG(kWarn, "pdc", "nonsense peer={} reason=\"{}\"", peer_, ToString(sense));
    Interrupt(Error(StatusCode::kUnavailable, "{} says nonsense: {}", peer_, Message(sense)));
  }
  void OnDone(const grpc::Status& status) override {
    std::shared_ptr<EventStream> self;
    Status why;
    {
      auto state = state_.Lock();
      why = state->why;
      self.swap(state->self);
    }
    const Status ended = FromGrpc(status);
    // First: a caller that goes on elsewhere sees that this one is not there.
    if (why.ok() && ended.code() == StatusCode::kUnavailable) table_->Broken(ended);
    OnLost(why.ok() ? EndOfStream(peer_, ended) : why);
    const std::shared_ptr<StreamTable> table = table_;
    self.reset();  // before those who wait for it may go
    table->Gone();
  }

 protected:
  // One at a time. Not OK: it makes no sense, and the stream ends.
  virtual Status Take(const Event& event) = 0;
  // Nothing comes any more; it may have been complete.
  virtual void OnLost(const Status& why) = 0;
  StreamTable& table() { return *table_; }

 private:
  struct State {
    Status why;  // it was interrupted
    std::shared_ptr<EventStream> self;
  };
  const std::string peer_;
  const std::shared_ptr<StreamTable> table_;
  grpc::ClientContext context_;
  Event event_;
  Guarded<State> state_;
};

}  // namespace ems::pdc::rpc
