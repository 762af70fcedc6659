#pragma once
// Unary gRPC calls over one channel, each with a deadline, which another thread can end.
//
// Bound: as many calls as there are threads that make one.
#include <functional>
#include <memory>
#include <set>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace ems {

// Threading: thread-safe.
class UnaryCalls final {
 public:
  explicit UnaryCalls(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  // `call` makes one call of a stub with this context. Errors: the call's    kDeadlineExceeded
  // kCancelled  after Close
  Status Call(Deadline deadline, const std::function<grpc::Status(grpc::ClientContext*)>& call);
  // Ends the calls under way and all later ones.
  void Close();

 private:
  struct State {
    bool closed = false;
    std::set<grpc::ClientContext*> contexts;  // of calls under way
  };
  const std::shared_ptr<grpc::Channel> channel_;
  Guarded<State> state_;
};

}  // namespace ems
