#include "mp_server/lease/peer_quorum.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ems::server {
namespace {

// Servers close connections that nobody uses.
constexpr Duration kKeptFor = std::chrono::seconds(10);

}  // namespace

// One server of a round, and where its answer goes.
struct PeerQuorum::Call final : fabric::AnswerSink {
  explicit Call(const NodeInfo* peer) : node(peer) {}

  uint64_t OnHeader(const wire::FrameHeader& header) override { return header.body_bytes; }
  Status OnTable(ConstBytes table) override {
    EMS_ASSIGN_OR_RETURN(heard, wire::ParseWordTable(table));
    return OkStatus();
  }
  bool NextValue(Value*) override { return false; }
  void OnValue(uint64_t) override {}

  void Ask(ViewVersion view) {
    fabric::RpcRequest& request = channel->NewRequest();
    request.header.op = wire::Op::kPeers;
    request.header.view = view.packed();
    channel->Start(this);
    asked = true;
  }
  // Another process at this address is not the one that the controller counts with.
  bool IsMeant() const { return channel->hello().boot_id == node->boot_id; }

  const NodeInfo* const node;
  std::unique_ptr<fabric::RpcChannel> channel;
  bool asked = false;
  wire::WordTable heard;
};

bool PeerQuorum::Begin(Call* call) {
  const auto kept = kept_.find(call->node->id);
  if (kept != kept_.end()) {
    call->channel = std::move(kept->second.channel);
    kept_.erase(kept);
    if (call->IsMeant()) return true;
  }
  const auto address = fabric::ParseAddress(call->node->data_address);
  if (!address.ok()) return false;
  auto started = fabric::RpcChannel::StartOpen(*address, attempts_[call->node->id]++);
  if (!started.ok()) return false;
  call->channel = *std::move(started);
  return true;
}

PeerAnswers PeerQuorum::Ask(const PeerRound& round, Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  ++rounds_;
  const TimePoint now = Clock::System().Now();
  if (now - std::exchange(last_round_, now) > kKeptFor) kept_.clear();
  const auto gone = [&](const auto& entry) { return round.view->Find(entry.first) == nullptr; };
  std::erase_if(kept_, gone);
  std::erase_if(attempts_, gone);
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<fabric::RpcChannel*> channels;
  for (const NodeId peer : round.peers) {
    const NodeInfo* const node = round.view->Find(peer);
    if (node == nullptr) continue;
    auto call = std::make_unique<Call>(node);
    if (!Begin(call.get())) continue;
    if (call->channel->done()) call->Ask(round.view->version());  // a kept one
    channels.push_back(call->channel.get());
    calls.push_back(std::move(call));
  }
  std::vector<Status> results(calls.size());
  fabric::RunAll(channels, deadline, results, {}, [&](size_t i) {
    Call& call = *calls[i];
    if (!call.asked && call.channel->Greeted(round.view->cluster()).ok() && call.IsMeant())
      call.Ask(round.view->version());
  });
  PeerAnswers answers;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!results[i].ok() || !calls[i]->asked) continue;
    // Whatever the status: software that knows no Peers says its view all the same.
    answers[calls[i]->node->id] = {.view = calls[i]->channel->answer().view_version(),
                                   .heard = std::move(calls[i]->heard)};
    Keep(calls[i].get());
  }
  return answers;
}

void PeerQuorum::Keep(Call* call) {
  attempts_.erase(call->node->id);
  kept_[call->node->id] = {.channel = std::move(call->channel), .round = rounds_};
  if (kept_.size() <= kChannelsMax) return;
  kept_.erase(std::min_element(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) {
    return a.second.round < b.second.round;
  }));
}

}  // namespace ems::server
