#include "mp_server/forward/peer_calls.h"

#include "fabric/net/socket.h"

namespace ems::server {
namespace {

constexpr size_t kPeersMax = 4096;

}  // namespace

void PeerCalls::SetNodes(const DhtView& view) {
  auto state = state_.Lock();
  state->cluster = view.cluster();
  if (state->peers.size() > kPeersMax) {
    std::erase_if(state->peers, [&](const auto& one) { return view.Find(one.first) == nullptr; });
  }
  for (auto& [id, peer] : state->peers) peer.shown = false;
  for (const NodeInfo& node : view.nodes()) {
    Peer& peer = state->peers[node.id];
    peer.address = node.data_address;
    peer.shown = true;
  }
}

std::shared_ptr<CircuitBreaker> PeerCalls::BreakerOf(NodeId node) {
  auto state = state_.Lock();
  const auto peer = state->peers.find(node);
  return peer == state->peers.end() || !peer->second.shown ? nullptr : peer->second.breaker;
}

Status PeerCalls::Call(NodeId node, Deadline deadline, Channels* channels,
                       const std::function<Status(fabric::RpcChannel*)>& ask) {
  std::string address;
  ClusterId cluster;
  std::shared_ptr<CircuitBreaker> breaker;
  {
    auto state = state_.Lock();
    const auto peer = state->peers.find(node);
    if (peer == state->peers.end())
      return Error(StatusCode::kUnavailable, "server {} is in no view any more", node.value());
    address = peer->second.address;
    breaker = peer->second.breaker;
    cluster = state->cluster;
  }
  auto& opened = (*channels)[node];
  std::string& connected = opened.first;
  std::unique_ptr<fabric::RpcChannel>& channel = opened.second;
  // A connection that was closed meanwhile says nothing of the peer.
  if (channel != nullptr && (connected != address || channel->HungUp())) channel.reset();
  const auto connect_and_ask = [&]() -> Status {
    if (channel == nullptr) {
      EMS_ASSIGN_OR_RETURN(const fabric::Address where, fabric::ParseAddress(address));
      EMS_ASSIGN_OR_RETURN(channel, fabric::RpcChannel::Open(where, deadline.Remaining(), cluster));
      connected = address;
    }
    return ask(channel.get());
  };
  const Status done = connect_and_ask();
  if (done.ok()) {
    breaker->OnSuccess();
  } else {
    channel.reset();
    breaker->OnFailure(Clock::System().Now());
  }
  return done;
}

}  // namespace ems::server
