#pragma once
// Unary gRPC calls over one channel, each with a deadline, which another thread can end.
//
// Calls of a process that belongs to a cluster say so, and the controller of another one carries
// none of them out; what another one answers is not taken.
//
// Bound: as many calls as there are threads that make one.
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace ems {

class ViewCache;

// Threading: thread-safe.
class UnaryCalls final {
 public:
  // `joined` says which cluster this process belongs to, and joins the first one that answers; it
  // must outlive the object. Null: calls are for whoever answers.
  explicit UnaryCalls(std::shared_ptr<grpc::Channel> channel, ViewCache* joined = nullptr)
      : channel_(std::move(channel)), joined_(joined) {}

  // `call` makes one call of a stub with this context. Errors: the call's    kDeadlineExceeded
  // kCancelled  after Close    kFailedPrecondition  the controller of another cluster
  Status Call(Deadline deadline, const std::function<grpc::Status(grpc::ClientContext*)>& call);
  // Ends the calls under way and all later ones.
  void Close();

 private:
  struct State {
    bool closed = false;
    std::set<grpc::ClientContext*> contexts;  // of calls under way
  };
  const std::shared_ptr<grpc::Channel> channel_;
  ViewCache* const joined_;
  Guarded<State> state_;
};

}  // namespace ems
