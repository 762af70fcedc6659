#include "mp_server/peer_quorum.h"

#include <algorithm>

namespace ems::server {
namespace {

// A Ping's answer says everything in its header.
class HeaderOnly final : public fabric::AnswerSink {
 public:
  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes) override { return OkStatus(); }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}
};

}  // namespace

bool PeerQuorum::Ask(const DhtView& view, NodeId self, Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  const Duration each = patience / static_cast<int64_t>(std::max<size_t>(1, view.nodes().size()));
  std::erase_if(channels_, [&](const auto& entry) { return view.Find(entry.first) == nullptr; });
  std::vector<fabric::RpcChannel*> asked;
  std::vector<NodeId> ids;
  HeaderOnly sink;
  for (const NodeInfo& node : view.nodes()) {
    if (node.id == self) continue;
    std::unique_ptr<fabric::RpcChannel>& channel = channels_[node.id];
    if (channel == nullptr) {
      const auto address = fabric::ParseAddress(node.data_address);
      if (!address.ok()) continue;
      auto opened = fabric::RpcChannel::Open(*address, std::min(each, deadline.Remaining()));
      if (!opened.ok()) continue;
      channel = *std::move(opened);
    }
    channel->NewRequest().header.op = wire::Op::kPing;
    channel->Start(&sink);
    asked.push_back(channel.get());
    ids.push_back(node.id);
  }
  std::vector<Status> results(asked.size());
  fabric::RunAll(asked, deadline, results);
  size_t agreeing = view.Find(self) != nullptr ? 1 : 0;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!results[i].ok()) {
      channels_[ids[i]].reset();
    } else if (asked[i]->answer().view_version() == view.version()) {
      ++agreeing;
    }
  }
  return agreeing * 2 > view.nodes().size();
}

}  // namespace ems::server
