#include "pdc/router/peer_health.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"

namespace ems::pdc {

PeerHealth::PeerHealth(std::vector<std::shared_ptr<DecodePeer>> peers,
                       const PeerHealthOptions& options)
    : options_(options) {
  EMS_CHECK(!peers.empty(), "no decode workers");
  for (auto& peer : peers) peers_.push_back({.peer = std::move(peer)});
}

size_t PeerHealth::Checked(int index) const {
  EMS_CHECK(index >= 0 && index < size(), "decode worker {} of {}", index, size());
  return static_cast<size_t>(index);
}

Status PeerHealth::Look(int index, TimePoint now) {
  Peer& peer = At(index);
  const DecodeHealth health = peer.peer->health();
  peer.kv_tokens_max = health.kv_tokens_max == 0 ? kUnknownRoom : health.kv_tokens_max;
  if (options_.kv_tokens_max != 0)
    peer.kv_tokens_max = std::min(peer.kv_tokens_max, options_.kv_tokens_max);
  const bool served = peer.why.ok();
  peer.why = health.status.ok() ? health.admits : health.status;
  if (served && !peer.why.ok()) {
    EMS_LOG(kWarn, "pdc", "decode worker is out name={} why=\"{}\"", peer.peer->name(),
            ToString(peer.why));
  } else if (!served && peer.why.ok()) {
    EMS_LOG(kInfo, "pdc", "decode worker is back name={}", peer.peer->name());
  }
  peer.full = false;
  if (peer.failed && now - peer.failed_at >= options_.heartbeat) peer.failed = false;
  return health.status.code() == StatusCode::kDeadlineExceeded ? OkStatus() : health.status;
}

void PeerHealth::OnFailed(int index, TimePoint now) {
  Peer& peer = At(index);
  peer.failed = true;
  peer.failed_at = now;
}

uint64_t PeerHealth::room_tokens_max() const {
  uint64_t most = 0;
  for (const Peer& peer : peers_) most = std::max(most, peer.kv_tokens_max);
  return most;
}

bool PeerHealth::any_usable() const { return std::any_of(peers_.begin(), peers_.end(), Usable); }

Status PeerHealth::ready() const {
  std::string why;
  for (const Peer& peer : peers_) {
    if (peer.why.ok()) return OkStatus();
    why += fmt::format("; '{}': {}", peer.peer->name(), Message(peer.why));
  }
  return Error(StatusCode::kUnavailable, "no decode worker is healthy{}", why);
}

}  // namespace ems::pdc
