#pragma once
// Unary calls of the controller that leads, of one or several.
//
// A controller that does not lead has done nothing and says so (proto/cluster_metadata.h): the call
// goes to the one that it names, or to the next one. A call that was sent and got no answer is not
// sent again here; the next one asks another controller.
//
// Bound: as many tries as there are controllers.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/channel_list.h"
#include "cluster/unary_calls.h"
#include "common/clock.h"
#include "common/status.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace ems {

class ViewCache;

// Threading: thread-safe.
class LeaderCalls final {
 public:
  // `addresses`: as ChannelList; with a fault all calls fail with it. `joined`: as UnaryCalls.
  LeaderCalls(std::string_view addresses, int message_bytes_max, ViewCache* joined);

  // `call` makes one call of the stub of that controller. Errors: those of UnaryCalls, prefixed
  // with the controller's address; kInvalidArgument  an address is wrong
  using MakeCall = std::function<grpc::Status(size_t controller, grpc::ClientContext* context)>;
  // `reads`: it changes nothing, so it may go to the next one also when no answer has come.
  Status Call(Deadline deadline, const MakeCall& call, bool reads = false);
  // A call of that controller, made elsewhere, has failed: who is to be asked next. True: it does
  // not lead, and nothing was done.
  bool OnFailed(size_t controller, const Status& status, const grpc::ClientContext& context);
  // Ends the calls under way and all later ones.
  void Close();

  ChannelList& channels() { return channels_; }

 private:
  ChannelList channels_;
  std::atomic<bool> closed_{false};
  std::vector<std::unique_ptr<UnaryCalls>> calls_;  // one for each
};

}  // namespace ems
