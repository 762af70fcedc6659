#pragma once
// Unary calls of one thread that another thread can end.
#include <grpcpp/grpcpp.h>

#include <memory>

#include "common/guarded.h"
#include "common/status.h"
#include "mp_controller/view/control_channel.h"
#include "proto/status_codec.h"

namespace ems::pdc::rpc {

// Threading: Call: one thread. Stop: any.
class UnaryCaller final {
 public:
  explicit UnaryCaller(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  // `call(ClientContext*)` makes the call and gives its grpc::Status. Errors: the call's
  // kCancelled  after Stop
  template <typename Method>
  Status Call(Duration timeout, Method call) {
    const Deadline deadline = Deadline::After(timeout);
    DriveChannel(channel_.get(), deadline);
    const auto context = std::make_shared<grpc::ClientContext>();
    SetDeadline(deadline, context.get());
    {
      auto state = state_.Lock();
      if (state->stopped) return Error(StatusCode::kCancelled, "stopping");
      state->context = context;
    }
    return FromGrpc(call(context.get()));
  }
  // Ends the call under way and all later ones.
  void Stop() {
    std::shared_ptr<grpc::ClientContext> context;
    {
      auto state = state_.Lock();
      state->stopped = true;
      context = state->context;
    }
    if (context) context->TryCancel();
  }

 private:
  struct State {
    bool stopped = false;
    std::shared_ptr<grpc::ClientContext> context;  // of the last call
  };
  const std::shared_ptr<grpc::Channel> channel_;
  Guarded<State> state_;
};

}  // namespace ems::pdc::rpc
