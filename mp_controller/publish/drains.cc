#include "mp_controller/publish/drains.h"

#include <algorithm>
#include <utility>

namespace ems::controller {

void Drains::Set(NodeId id, bool drained) {
  if (drained) {
    wanted_.insert(id);
  } else {
    wanted_.erase(id);
  }
}

void Drains::Forget(NodeId id) {
  wanted_.erase(id);
  words_.erase(id);
  stopping_.erase(id);
  losses_.erase(id);
}

void Drains::OnWord(NodeId id, Word word) {
  if (word.stopping) {
    stopping_.insert(id);
  } else {
    stopping_.erase(id);
  }
  words_[id] = std::move(word);
}

bool Drains::Stops(const NodeInfo& node) const {
  return stopping_.contains(node.id) && words_.at(node.id).boot_id == node.boot_id;
}

Status Drains::Check(NodeId id, const DhtView& view) const {
  if (view.Find(id) == nullptr)
    return OkStatus();  // it has nothing that another would have to take
  const bool any = std::ranges::any_of(
      view.nodes(), [&](const NodeInfo& node) { return node.id != id && !IsOut(node); });
  if (any) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "no other server could have its slots: start one, or cancel the drain of one");
}

std::vector<const NodeInfo*> Drains::Choose(std::span<const NodeInfo> nodes) const {
  std::vector<const NodeInfo*> staying, going_on, all;
  for (const NodeInfo& node : nodes) {
    all.push_back(&node);
    if (!Stops(node)) going_on.push_back(&node);
    if (!IsOut(node)) staying.push_back(&node);
  }
  if (!staying.empty()) return staying;
  return going_on.empty() ? all : going_on;
}

std::vector<NodeInfo> Drains::OwnersOf(std::span<const NodeInfo> nodes) const {
  std::vector<NodeInfo> owners;
  for (const NodeInfo* node : Choose(nodes)) owners.push_back(*node);
  return owners;
}

std::set<NodeId> Drains::OutOf(std::span<const NodeInfo> nodes) const {
  std::set<NodeId> out;
  for (const NodeInfo& node : nodes)
    if (IsOut(node)) out.insert(node.id);
  for (const NodeInfo* owner : Choose(nodes)) out.erase(owner->id);
  return out;
}

bool Drains::IsDue(const DhtView& view, TimePoint now) {
  if (wanted_.empty() && stopping_.empty() && published_.empty()) return false;
  // In a frozen view no slot moves; and where all stop, none has anywhere to go.
  const bool all_stop =
      std::ranges::all_of(view.nodes(), [&](const NodeInfo& node) { return Stops(node); });
  if (view.frozen() || all_stop || OutOf(view.nodes()) == published_) {
    changed_at_.reset();
    return false;
  }
  if (!changed_at_) changed_at_ = now;
  return now - *changed_at_ >= options_.settle;
}

void Drains::OnPublished(const DhtView& view, bool given_out, TimePoint now) {
  changed_at_.reset();
  std::set<NodeId> without;
  for (const NodeInfo& node : view.nodes()) without.insert(node.id);
  for (const NodeId owner : view.slots().owners()) without.erase(owner);
  published_ = given_out ? OutOf(view.nodes()) : without;
  std::erase_if(losses_, [&](const auto& one) { return view.Find(one.first) == nullptr; });
  for (const NodeInfo& node : view.nodes()) {
    if (without.contains(node.id) && IsOut(node)) {
      losses_.try_emplace(node.id, Loss{view.version(), now});
    } else {
      losses_.erase(node.id);
    }
  }
}

// Who fetches from `to` fetches from `id`, or hears from `to` that it has to.
bool Drains::Leads(NodeId to, NodeId id) const {
  if (to == id) return true;
  const auto word = words_.find(to);
  return word != words_.end() && std::ranges::count(word->second.vouching_for, id) > 0;
}

// One that has not installed the view may begin to fetch once it has.
size_t Drains::PulledBy(NodeId id, const DhtView& view, ViewVersion lost_by) const {
  const auto pulls = [&](const NodeInfo& node) {
    if (node.id == id) return false;
    const auto word = words_.find(node.id);
    return word == words_.end() || word->second.boot_id != node.boot_id ||
           word->second.installed < lost_by ||
           std::ranges::any_of(word->second.pulling_from,
                               [&](NodeId from) { return Leads(from, id); });
  };
  return static_cast<size_t>(std::ranges::count_if(view.nodes(), pulls));
}

DrainStatus Drains::StatusOf(NodeId id, const DhtView& view, ViewVersion active,
                             TimePoint now) const {
  const NodeInfo* const node = view.Find(id);
  const bool stops = node != nullptr ? Stops(*node) : stopping_.contains(id);
  const auto word = words_.find(id);
  DrainStatus status;
  if (word != words_.end()) status.pulls_from = word->second.pulling_from.size();
  status.may_stop = true;
  if (!IsSet(id) && (!stops || node == nullptr)) return status;
  status.state = DrainState::kDraining;
  status.stopping = !IsSet(id);
  const auto loss = losses_.find(id);
  if (node == nullptr) {
    status.state = DrainState::kDrained;
  } else if (view.slots().CountOf(id) == 0 && loss != losses_.end()) {
    status.pulled_by = PulledBy(id, view, loss->second.view);
    const bool over = status.pulled_by == 0 || now - loss->second.at >= options_.patience;
    if (over && active >= loss->second.view) status.state = DrainState::kDrained;
  }
  const bool alone = std::ranges::none_of(
      view.nodes(), [&](const NodeInfo& other) { return other.id != id && !Stops(other); });
  const bool stuck = node != nullptr && (view.frozen() || alone);
  status.may_stop = status.state == DrainState::kDrained || stuck;
  return status;
}

}  // namespace ems::controller
