#include "mp_server/models/peer_blocks.h"

#include <algorithm>
#include <span>
#include <utility>

namespace ems::server {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(1);

// One value of a length that is known.
class BlockSink final : public fabric::AnswerSink {
 public:
  // `request` is what is asked; it is sealed before an answer comes.
  BlockSink(const wire::FrameHeader* request, MutableBytes into) : request_(request), into_(into) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    bytes_ = header.body_bytes;
    wanted_ = wire::FoldChecksum(header.checksum, *request_);
    return 0;
  }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value* value) override {
    if (std::exchange(given_, true)) return false;
    value->bytes = bytes_;
    if (bytes_ == into_.size()) value->into = std::span(&into_, 1);
    return true;
  }
  void OnValue(uint64_t checksum) override { whole_ = checksum == wanted_; }
  bool fits() const { return bytes_ == into_.size(); }
  bool whole() const { return whole_; }

 private:
  const wire::FrameHeader* const request_;
  const MutableBytes into_;
  uint64_t bytes_ = 0, wanted_ = 0;
  bool given_ = false, whole_ = false;
};

}  // namespace

Result<bool> PeerBlocks::Read(const DhtView& view, NamespaceRef ns, SlotId slot,
                              const std::string& key, MutableBytes into, Deadline deadline) {
  Result<bool> there = Ask(view, ns, slot, key, wire::kFlagNoTouch, into, deadline);
  // Damaged on the way, or where it lies: whoever is asked to look evicts what is damaged there.
  if (there.status().code() == StatusCode::kDataLoss)
    there = Ask(view, ns, slot, key, wire::kFlagNoTouch | wire::kFlagCheck, into, deadline);
  return there;
}

Result<bool> PeerBlocks::Ask(const DhtView& view, NamespaceRef ns, SlotId slot,
                             const std::string& key, uint16_t flags, MutableBytes into,
                             Deadline deadline) {
  std::erase_if(channels_, [&](const auto& one) { return view.Find(one.first) == nullptr; });
  const NodeInfo* const owner = view.Find(view.OwnerId(slot));
  if (owner == nullptr)
    return Error(StatusCode::kUnavailable, "slot {} has no owner", slot.value());
  std::unique_ptr<fabric::RpcChannel> channel = std::move(channels_[owner->id]);
  if (channel == nullptr) {
    EMS_ASSIGN_OR_RETURN(const fabric::Address address, fabric::ParseAddress(owner->data_address));
    EMS_ASSIGN_OR_RETURN(
        channel, fabric::RpcChannel::Open(address, std::min(kConnectPatience, deadline.Remaining()),
                                          view.cluster()));
  }
  fabric::RpcRequest& request = channel->NewRequest();
  request.header.op = wire::Op::kGet;
  request.header.flags = flags;
  request.header.deadline_ms = static_cast<uint32_t>(deadline.RemainingMs());
  request.header.namespace_id = ns.id.value();
  request.header.namespace_generation = ns.generation;
  request.header.view = view.version().packed();
  request.header.slot = slot.value();
  const ConstBytes name = AsBytes(key);
  request.head.assign(name.begin(), name.end());
  request.key_bytes = static_cast<uint16_t>(name.size());
  BlockSink sink(&request.header, into);
  channel->Start(&sink);
  fabric::RpcChannel* const one = channel.get();
  Status done;
  fabric::RunAll(std::span(&one, 1), deadline, std::span(&done, 1));
  EMS_RETURN_IF_ERROR(done);
  const wire::WireStatus status = channel->answer().status;
  channels_[owner->id] = std::move(channel);
  if (status == wire::WireStatus::kMiss) return false;
  if (status != wire::WireStatus::kOk)
    return Error(StatusCode::kUnavailable, "{} does not give it: status {}", owner->data_address,
                 static_cast<unsigned>(status));
  if (!sink.fits()) return false;  // something else in its name
  if (sink.whole()) return true;
  return Error(StatusCode::kDataLoss, "a block of {} bytes from {} does not match its checksum",
               into.size(), owner->data_address);
}

}  // namespace ems::server
