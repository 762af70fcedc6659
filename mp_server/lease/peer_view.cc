#include "mp_server/lease/peer_view.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/logging.h"
#include "fabric/rpc/rpc_channel.h"
#include "proto/controller.pb.h"

namespace ems::server {
namespace {

struct Call final : fabric::AnswerSink {
  explicit Call(const NodeInfo* peer) : node(peer) {}

  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    if (table.empty()) return OkStatus();  // it has none that is newer
    v1::View view;
    if (!view.ParseFromArray(table.data(), static_cast<int>(table.size())))
      return Error(StatusCode::kDataLoss, "{} bytes that are no view", table.size());
    EMS_ASSIGN_OR_RETURN(found, DhtView::FromProto(view));
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}

  void Ask(ViewVersion newer_than) {
    fabric::RpcRequest& request = channel->NewRequest();
    request.header.op = wire::Op::kView;
    request.header.view = newer_than.packed();
    channel->Start(this);
    asked = true;
  }

  const NodeInfo* const node;
  std::unique_ptr<fabric::RpcChannel> channel;
  bool asked = false;
  ViewCache::View found;
};

}  // namespace

void AppendTo(const DhtView& view, std::vector<std::byte>* body) {
  v1::View message;
  view.ToProto(&message);
  const size_t bytes = message.ByteSizeLong();
  if (bytes > wire::kViewBytesMax) return;  // who asks has none from here
  const size_t before = body->size();
  body->resize(before + bytes);
  (void)message.SerializeToArray(body->data() + before, static_cast<int>(bytes));
}

ViewCache::View PeerView::Find(const DhtView& view, NodeId self, Duration patience) {
  std::vector<const NodeInfo*> peers;
  for (const NodeInfo& node : view.nodes())
    if (node.id != self) peers.push_back(&node);
  std::shuffle(peers.begin(), peers.end(), dice_);
  if (peers.size() > kAsked) peers.resize(kAsked);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<fabric::RpcChannel*> channels;
  for (const NodeInfo* const peer : peers) {
    const auto address = fabric::ParseAddress(peer->data_address);
    if (!address.ok()) continue;
    auto started = fabric::RpcChannel::StartOpen(*address, 0);
    if (!started.ok()) continue;
    calls.push_back(std::make_unique<Call>(peer));
    calls.back()->channel = *std::move(started);
    channels.push_back(calls.back()->channel.get());
  }
  std::vector<Status> results(calls.size());
  fabric::RunAll(channels, Deadline::After(patience), results, {}, [&](size_t i) {
    Call& call = *calls[i];
    const bool meant = !call.asked && call.channel->Greeted(view.cluster()).ok() &&
                       call.channel->hello().boot_id == call.node->boot_id;
    if (meant) call.Ask(view.version());
  });
  ViewCache::View newest;
  for (size_t i = 0; i < calls.size(); ++i) {
    const ViewCache::View found = results[i].ok() ? calls[i]->found : nullptr;
    if (found == nullptr || found->version() <= view.version()) continue;
    if (newest == nullptr || found->version() > newest->version()) newest = found;
  }
  return newest;
}

}  // namespace ems::server
