#include "mp_server/lease/peer_words.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>

namespace ems::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kSilenceFirst = milliseconds(250);
constexpr Duration kSilenceMost = std::chrono::seconds(10);
constexpr int kDoublingsMax = 6;

bool Counts(TimePoint said, TimePoint now) {
  return said != TimePoint{} && now - said <= kQuorumValid;
}

bool Has(const std::vector<size_t>& chosen, size_t index) {
  return std::find(chosen.begin(), chosen.end(), index) != chosen.end();
}

}  // namespace

wire::WordTable HeardWords::Tell(TimePoint now) const {
  wire::WordTable table{.view = view, .fingerprint = fingerprint, .words = {}};
  table.words.reserve(words.size());
  for (const Word& word : words) {
    if (!Counts(word.said, now)) continue;
    const Duration age = std::max(now - word.said, Duration::zero());
    const auto rounded_up = std::chrono::ceil<microseconds>(age).count();
    table.words.push_back({.boot_id = word.boot_id,
                           .node_id = word.id.value(),
                           .age_us = static_cast<uint32_t>(rounded_up)});
  }
  return table;
}

void PeerWords::Follow(const DhtView& view, uint64_t fingerprint, NodeId self) {
  if (view.version() == view_ && fingerprint == fingerprint_ && self == self_) return;
  view_ = view.version();
  fingerprint_ = fingerprint;
  self_ = self;
  peers_.clear();
  for (const NodeInfo& node : view.nodes())
    if (node.id != self) peers_.push_back({.id = node.id, .boot_id = node.boot_id});
  order_.resize(peers_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::shuffle(order_.begin(), order_.end(), dice_);
  next_ = 0;
}

std::vector<NodeId> PeerWords::Choose(TimePoint now) {
  Chosen chosen;
  const size_t most = asks_all() ? peers_.size() : kAsked;
  AddNext(now, &chosen);
  if (!asks_all()) AddHeard(now, &chosen);
  while (chosen.size() < most && AddNext(now, &chosen)) {
  }
  std::vector<NodeId> ids;
  ids.reserve(chosen.size());
  for (const size_t index : chosen) ids.push_back(peers_[index].id);
  return ids;
}

// False: there is nobody left to ask.
bool PeerWords::AddNext(TimePoint now, Chosen* chosen) {
  for (size_t tries = 0; tries < order_.size(); ++tries) {
    const size_t index = order_[next_];
    next_ = (next_ + 1) % order_.size();
    if (peers_[index].not_before > now || Has(*chosen, index)) continue;
    chosen->push_back(index);
    return true;
  }
  return false;
}

void PeerWords::AddHeard(TimePoint now, Chosen* chosen) {
  Chosen living;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (Counts(peer.said, now) && peer.not_before <= now && !Has(*chosen, i)) living.push_back(i);
  }
  while (chosen->size() < kAsked && !living.empty()) {
    std::swap(living[dice_() % living.size()], living.back());
    chosen->push_back(living.back());
    living.pop_back();
  }
}

// The index of `id`, which is `hint` or the next one when a table is in order; or peers_.size().
size_t PeerWords::Seek(size_t hint, NodeId id) const {
  for (size_t i = hint; i < std::min(hint + 2, peers_.size()); ++i)
    if (peers_[i].id == id) return i;
  const auto at = std::ranges::lower_bound(peers_, id, {}, &Peer::id);
  return at != peers_.end() && at->id == id ? static_cast<size_t>(at - peers_.begin())
                                            : peers_.size();
}

void PeerWords::OnAnswer(NodeId peer, TimePoint asked, ViewVersion said,
                         const wire::WordTable& relayed) {
  const size_t answers = Seek(0, peer);
  if (answers == peers_.size()) return;
  Peer& one = peers_[answers];
  one.silences = 0;
  one.not_before = {};
  if (said == view_) one.said = std::max(one.said, asked);
  if (relayed.view != view_ || relayed.fingerprint != fingerprint_) return;
  size_t at = 0;
  for (const wire::PeerWord& word : relayed.words) {
    const size_t found = Seek(at, NodeId(word.node_id));
    if (found == peers_.size()) continue;
    at = found;
    const Duration age = microseconds(word.age_us);
    if (word.boot_id != peers_[at].boot_id || age > kQuorumValid) continue;
    const TimePoint when = rules_.words_keep_their_age ? asked - age : asked;
    peers_[at].said = std::max(peers_[at].said, when);
  }
}

void PeerWords::OnSilence(NodeId peer, TimePoint asked) {
  const size_t index = Seek(0, peer);
  if (index == peers_.size()) return;
  // Whoever is dead takes no more than one question in a round, together with all others that are.
  const Duration most =
      std::min(kSilenceMost, kGossipEvery * static_cast<int64_t>(peers_.size() + 1));
  Peer& one = peers_[index];
  one.not_before = asked + std::min(most, kSilenceFirst * (1 << one.silences));
  one.silences = std::min(one.silences + 1, kDoublingsMax);
}

std::optional<TimePoint> PeerWords::SaidBy(size_t count) const {
  if (count == 0) return TimePoint::max();
  if (count > peers_.size()) return std::nullopt;
  std::vector<TimePoint> said;
  said.reserve(peers_.size());
  for (const Peer& peer : peers_) said.push_back(peer.said);
  const auto last = said.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(said.begin(), last, said.end(), std::greater<>());
  if (*last == TimePoint{}) return std::nullopt;
  return *last;
}

std::shared_ptr<const HeardWords> PeerWords::Heard(TimePoint now) const {
  auto heard = std::make_shared<HeardWords>();
  heard->view = view_;
  heard->fingerprint = fingerprint_;
  heard->words.reserve(peers_.size());
  for (const Peer& peer : peers_)
    if (Counts(peer.said, now)) heard->words.push_back({peer.id, peer.boot_id, peer.said});
  return heard;
}

}  // namespace ems::server
