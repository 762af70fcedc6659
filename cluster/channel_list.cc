#include "cluster/channel_list.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "cluster/control_channel.h"
#include "common/host_port.h"

namespace ems {
namespace {

constexpr Duration kConnectMost = std::chrono::milliseconds(300);

Status CheckAddresses(const std::vector<std::string>& addresses) {
  if (addresses.empty()) return CheckControllerAddress("");
  if (addresses.size() > ChannelList::kMost) {
    return Error(StatusCode::kInvalidArgument, "{} addresses, at most {} are allowed",
                 addresses.size(), ChannelList::kMost);
  }
  for (const std::string& address : addresses) EMS_RETURN_IF_ERROR(CheckControllerAddress(address));
  return OkStatus();
}

}  // namespace

ChannelList::ChannelList(std::string_view addresses, int message_bytes_max)
    : addresses_(SplitAddresses(addresses)), fault_(CheckAddresses(addresses_)) {
  if (addresses_.empty()) addresses_.emplace_back(addresses);
  for (const std::string& address : addresses_)
    channels_.push_back(MakeControlChannel(address, message_bytes_max));
}

ChannelList::~ChannelList() = default;

size_t ChannelList::Pick(Deadline deadline) {
  const std::optional<size_t> connected = PickConnected(deadline);
  return connected.has_value() ? *connected : asked_.load(std::memory_order_relaxed);
}

std::optional<size_t> ChannelList::PickConnected(Deadline deadline) {
  const size_t first = asked_.load(std::memory_order_relaxed);
  if (size() == 1) return first;
  for (size_t i = 0; i < size(); ++i) {
    const size_t at = (first + i) % size();
    const Duration most = std::min(deadline.Remaining(), kConnectMost);
    if (!IsConnected(channels_[at].get(), Deadline::After(most))) continue;
    size_t expected = first;
    asked_.compare_exchange_strong(expected, at, std::memory_order_relaxed);
    return at;
  }
  return std::nullopt;
}

void ChannelList::Leave(size_t i) {
  asked_.compare_exchange_strong(i, (i + 1) % size(), std::memory_order_relaxed);
}

bool ChannelList::Follow(std::string_view address) {
  const auto at = std::ranges::find(addresses_, address);
  if (at == addresses_.end()) return false;
  asked_.store(static_cast<size_t>(at - addresses_.begin()), std::memory_order_relaxed);
  return true;
}

}  // namespace ems
