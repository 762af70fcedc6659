#pragma once
// Connections to several processes that stand in for each other, and which of them to ask next: the
// controllers of a cluster, or the members of an etcd.
//
// A call is sent over a connection that stands, where there is one: nothing was sent to those that
// cannot be reached, so the next one can be asked without doing anything twice.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace grpc {
class Channel;
}

namespace ems {

// Threading: thread-safe.
class ChannelList final {
 public:
  // `addresses`: as SplitAddresses. Nothing is connected yet. Bound: kMost of them.
  static constexpr size_t kMost = 16;
  ChannelList(std::string_view addresses, int message_bytes_max);
  ~ChannelList();
  ChannelList(const ChannelList&) = delete;
  ChannelList& operator=(const ChannelList&) = delete;

  // Errors: kInvalidArgument  none, more than kMost, or one that is not host:port
  const Status& fault() const { return fault_; }
  // At least 1; with a fault nothing may be sent.
  size_t size() const { return channels_.size(); }
  const std::string& address(size_t i) const { return addresses_[i]; }
  const std::shared_ptr<grpc::Channel>& channel(size_t i) const { return channels_[i]; }

  // The one to ask: the one that was asked last, or the next one that is connected. When none is,
  // the one that was asked last. Cost: nothing while that one is connected; up to 300 ms for each
  // other one, within the deadline.
  size_t Pick(Deadline deadline);
  // Likewise; nothing when none is. Of a single one it is not asked whether it is.
  std::optional<size_t> PickConnected(Deadline deadline);
  // That one is not to be asked next. Nothing happens when another has been picked since.
  void Leave(size_t i);
  // The one of that address is; false: it is not in the list.
  bool Follow(std::string_view address);

 private:
  std::vector<std::string> addresses_;
  Status fault_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::atomic<size_t> asked_{0};  // relaxed: a hint
};

}  // namespace ems
