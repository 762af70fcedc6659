#include "mp_server/forward/copy_fetch.h"

#include <span>
#include <utility>

#include "common/checksum.h"
#include "fabric/rpc/rpc_channel.h"

namespace ems::server {
namespace {

class FetchSink final : public fabric::AnswerSink {
 public:
  FetchSink(const wire::FrameHeader* request, const TieredNamespace* objects,
            const CopyWanted* wanted, FetchedCopy* fetched)
      : request_(*request), objects_(*objects), wanted_(*wanted), fetched_(*fetched) {}
  uint64_t OnHeader(const wire::FrameHeader& header) override {
    body_bytes_ = header.body_bytes;
    expected_ = header.checksum;
    return 0;
  }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value* value) override {
    if (std::exchange(given_, true)) return false;
    value->bytes = body_bytes_;
    auto filling = objects_.AdmitPut(body_bytes_);
    if (!filling.ok()) return true;
    auto room = objects_.Reserve(wanted_.slot, wanted_.key, body_bytes_);
    if (!room.ok()) return true;
    fetched_.filling = *std::move(filling);
    fetched_.reservation = *std::move(room);
    into_ = fetched_.reservation.value();
    value->into = std::span(&into_, 1);
    return true;
  }
  void OnValue(uint64_t checksum) override {
    whole_ = checksum == wire::FoldChecksum(expected_, request_);
    fetched_.checksum = checksum;
  }
  bool whole() const { return whole_; }

 private:
  const wire::FrameHeader& request_;
  const TieredNamespace& objects_;
  const CopyWanted& wanted_;
  FetchedCopy& fetched_;
  uint64_t body_bytes_ = 0, expected_ = 0;
  bool given_ = false, whole_ = false;
  MutableBytes into_;
};

}  // namespace

Status FetchCopy(PeerCalls* peers, NodeId node, Deadline deadline, PeerCalls::Channels* channels,
                 const CopyWanted& wanted, const TieredNamespace& objects, FetchedCopy* fetched) {
  return peers->Call(node, deadline, channels, [&](fabric::RpcChannel* channel) {
    fabric::RpcRequest& request = channel->NewRequest();
    request.header.op = wire::Op::kGet;
    request.header.flags = wire::kFlagCopy | wire::kFlagNoTouch;
    request.header.deadline_ms = static_cast<uint32_t>(deadline.RemainingMs());
    request.header.namespace_id = wanted.ns.id.value();
    request.header.namespace_generation = wanted.ns.generation;
    request.header.view = wanted.view.packed();
    request.header.slot = wanted.slot.value();
    const ConstBytes name = AsBytes(wanted.key);
    request.head.assign(name.begin(), name.end());
    request.key_bytes = static_cast<uint16_t>(name.size());
    FetchSink sink(&request.header, &objects, &wanted, fetched);
    channel->Start(&sink);
    Status done;
    fabric::RunAll(std::span(&channel, 1), deadline, std::span(&done, 1));
    EMS_RETURN_IF_ERROR(done);
    fetched->found = channel->answer().status == wire::WireStatus::kOk;
    if (!fetched->found || !fetched->reservation) return OkStatus();
    HashPieces(fetched->reservation.value(), fetched->reservation.piece_sums());
    if (sink.whole() && CombinePieces(fetched->reservation.piece_sums()) == fetched->checksum)
      return OkStatus();
    *fetched = FetchedCopy();
    return Error(StatusCode::kDataLoss, "a copy does not match its checksum");
  });
}

}  // namespace ems::server
