#include "mp_controller/activation.h"

#include <algorithm>

#include "common/check.h"

namespace ems::controller {
namespace {

bool HaveOneFolder(const NodeInfo& before, const NodeInfo& after) {
  return before.folder_id != 0 && before.folder_id == after.folder_id;
}

// Of one name. The socket is one process's at a time, and so is the folder for as long as one
// kernel runs.
bool ShowsDeathOf(const NodeInfo& before, const NodeInfo& after) {
  if (before.boot_id == after.boot_id) return false;
  const bool same_listener = before.listener_id != 0 && before.listener_id == after.listener_id;
  return same_listener || (HaveOneFolder(before, after) && before.host_id == after.host_id);
}

// A copy of the machine has the same folder; in the same network it has another address.
bool ShowsBootSince(const NodeInfo& before, const NodeInfo& after) {
  return HaveOneFolder(before, after) && before.host_id != after.host_id &&
         before.data_address == after.data_address;
}

}  // namespace

void Activation::Restore(const DhtView& view, ViewVersion active, TimePoint leased_until) {
  OnPublished(view, TimePoint{});
  if (view.version() <= active) views_.back().losers.clear();
  for (const Process& process : views_.back().servers) leases_[process] = leased_until;
}

void Activation::OnPublished(const DhtView& view, TimePoint now) {
  EMS_CHECK(views_.empty() || views_.back().version < view.version(), "view {} after {}",
            view.version().packed(), views_.back().version.packed());
  OpenView next;
  next.version = view.version();
  next.members = view.nodes().size();
  std::map<NodeId, uint64_t> shown;
  for (const NodeInfo& node : view.nodes()) {
    OnThere(node, now);
    infos_[{node.id, node.boot_id}] = node;
    shown[node.id] = node.boot_id;
    next.servers.insert({node.id, node.boot_id});
  }
  AddLosers(view.slots(), shown, &next.losers);
  for (const Process& server : next.servers)
    if (Tells(server, next.version)) next.telling.insert(server);
  for (const Process& loser : next.losers) must_install_[loser] = next.version;
  // By an older view it would act for the process that had its name; and by one of another history
  // it would answer with values that others may have replaced.
  const SlotHistory& history = view.history();
  const bool new_history = history_ != 0 && history.known() && history.id() != history_;
  for (const Process& server : next.servers) {
    const auto before = shown_.find(server.id);
    if (new_history || before == shown_.end() || before->second != server.boot_id)
      must_install_[server] = next.version;
  }
  history_ = history.id();
  shown_ = std::move(shown);
  slots_ = view.slots();
  views_.push_back(std::move(next));
  Close(now);
}

// Who has had slots that another node has from now on, or another process of its name.
void Activation::AddLosers(const SlotTable& slots, const std::map<NodeId, uint64_t>& shown,
                           std::set<Process>* losers) const {
  const auto before = slots_.owners(), after = slots.owners();
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i] || before[i] == kNoNode) continue;
    const auto owner = shown_.find(before[i]);
    EMS_CHECK(owner != shown_.end(), "slot {} was node {}'s, which the view before does not show",
              i, before[i].value());
    losers->insert({before[i], owner->second});
  }
  for (const auto& [id, boot_id] : shown_) {
    const auto now = shown.find(id);
    if (now != shown.end() && now->second == boot_id) continue;
    if (std::find(before.begin(), before.end(), id) != before.end()) losers->insert({id, boot_id});
  }
}

void Activation::OnThere(const NodeInfo& info, TimePoint now) {
  for (auto it = infos_.lower_bound({info.id, 0}); it != infos_.end() && it->first.id == info.id;
       ++it) {
    const auto& [process, before] = *it;
    if (ShowsDeathOf(before, info) && gone_.insert(process).second) Recount(process);
    if (rules_.boots_close_views && ShowsBootSince(before, info)) booted_.insert(process);
  }
  Close(now);
}

bool Activation::Counts(Process process) const {
  return std::any_of(views_.begin(), views_.end(), [&](const OpenView& view) {
    return view.servers.contains(process) || view.losers.contains(process);
  });
}

void Activation::OnInstalled(Process process, ViewVersion installed, TimePoint now) {
  if (!Counts(process)) return;
  ViewVersion& known = installed_[process];
  if (installed <= known) return;
  known = installed;
  Recount(process);
  Close(now);
}

void Activation::OnRenewed(Process process, TimePoint until) {
  booted_.erase(process);
  if (gone_.erase(process) + refused_.erase(process) > 0) Recount(process);
  TimePoint& end = leases_[process];
  end = std::max(end, until);
}

void Activation::OnRefused(Process process, TimePoint now) {
  if (!Counts(process) || !refused_.insert(process).second) return;
  Recount(process);
  Close(now);
}

void Activation::OnGone(Process process, TimePoint now) {
  if (!Counts(process)) return;
  if (gone_.insert(process).second) Recount(process);
  Close(now);
}

void Activation::Prolong(Duration by) {
  for (auto& [process, end] : leases_) end += by;
}

void Activation::AcceptLoss(const std::set<Process>& lives, TimePoint now) {
  for (const OpenView& view : views_) {
    for (const Process& server : view.servers)
      if (!lives.contains(server)) gone_.insert(server);
  }
  for (const Process& process : gone_) Recount(process);
  Close(now - kQuorumOver);  // a dead process tells nobody anything
}

ViewWindow Activation::Window() const {
  ViewWindow window;
  for (const OpenView& view : views_) window.open.push_back(view.version);
  window.active = active_;
  return window;
}

bool Activation::HasInstalled(Process process, ViewVersion version) const {
  const auto it = installed_.find(process);
  return it != installed_.end() && it->second >= version;
}

// Whoever has a newer view, or is gone, tells nobody any more that it has this one.
bool Activation::Tells(Process process, ViewVersion version) const {
  const auto it = installed_.find(process);
  return !gone_.contains(process) && !refused_.contains(process) &&
         (it == installed_.end() || it->second <= version);
}

void Activation::Recount(Process process) {
  for (OpenView& view : views_) {
    if (!view.servers.contains(process)) continue;
    if (Tells(process, view.version)) {
      view.telling.insert(process);
    } else {
      view.telling.erase(process);
    }
  }
}

void Activation::Close(TimePoint now) {
  for (OpenView& view : views_) {
    if (view.closed_at.has_value() || &view == &views_.back()) continue;
    if (HasEnded(view)) view.closed_at = now;
  }
}

bool Activation::HasEnded(const OpenView& view) const {
  if (view.telling.size() * 2 <= view.members) return true;
  if (booted_.empty()) return false;
  const auto unknown = static_cast<size_t>(std::ranges::count_if(
      view.telling, [&](const Process& process) { return !booted_.contains(process); }));
  return unknown * (rules_.boots_count_together ? 4 : 2) <= view.members;
}

bool Activation::AreClosedBefore(ViewVersion version, TimePoint now) const {
  if (!rules_.activation_waits_for_peers) return true;
  return std::all_of(views_.begin(), views_.end(), [&](const OpenView& view) {
    return view.version >= version || IsClosed(view, now);
  });
}

bool Activation::IsDone(Process loser, ViewVersion version, TimePoint now) const {
  if (gone_.contains(loser) || HasInstalled(loser, version)) return true;
  const auto lease = leases_.find(loser);
  return (lease == leases_.end() || lease->second <= now) && AreClosedBefore(version, now);
}

bool Activation::MayRenew(Process process, ViewVersion installed) const {
  const auto lost = must_install_.find(process);
  // What was lost by views that are forgotten is forgotten as well.
  const ViewVersion needed = std::max(lost == must_install_.end() ? ViewVersion() : lost->second,
                                      views_.empty() ? ViewVersion() : views_.front().version);
  if (rules_.renewals_need_the_view && installed < needed) return false;
  // A closed view stays closed: who did not count when it was closed may not tell of it again.
  if (!refused_.contains(process) && !gone_.contains(process) && !booted_.contains(process))
    return true;
  return std::none_of(views_.begin(), views_.end(), [&](const OpenView& view) {
    return view.closed_at.has_value() && installed <= view.version &&
           view.servers.contains(process);
  });
}

ViewVersion Activation::Active(TimePoint now) {
  for (const OpenView& view : views_) {
    if (view.version <= active_) continue;
    const bool done = !rules_.puts_wait_for_activation ||
                      std::all_of(view.losers.begin(), view.losers.end(),
                                  [&](Process loser) { return IsDone(loser, view.version, now); });
    if (!done) break;
    active_ = view.version;
  }
  Trim(now);
  return active_;
}

std::vector<NodeId> Activation::WaitsFor(TimePoint now) const {
  std::vector<NodeId> nodes;
  for (const OpenView& view : views_) {
    if (view.version <= active_) continue;
    for (const Process& loser : view.losers)
      if (!IsDone(loser, view.version, now)) nodes.push_back(loser.id);
    break;
  }
  if (nodes.empty() && !HasRoom())
    for (const Process& server : views_.front().telling) nodes.push_back(server.id);
  return nodes;
}

bool Activation::WaitsFor(NodeId id, TimePoint now) const {
  const auto waits = [&](const OpenView& view) {
    return view.version > active_ && std::ranges::any_of(view.losers, [&](const Process& loser) {
             return loser.id == id && !IsDone(loser, view.version, now);
           });
  };
  return std::ranges::any_of(views_, waits) || std::ranges::count(WaitsFor(now), id) > 0;
}

// Forgets views that nobody can act upon any more, and processes of which no other tells.
void Activation::Trim(TimePoint now) {
  // The one before a view that is not active yet says who loses slots by it.
  bool trimmed = false;
  for (auto view = views_.begin(); view != views_.end();) {
    const auto next = std::next(view);
    if (next != views_.end() && next->version <= active_ && IsClosed(*view, now)) {
      view = views_.erase(view);
      trimmed = true;
    } else {
      ++view;
    }
  }
  if (!trimmed) return;
  std::set<Process> named;
  for (const OpenView& view : views_) {
    named.insert(view.servers.begin(), view.servers.end());
    named.insert(view.losers.begin(), view.losers.end());
  }
  const auto forgotten = [&](const Process& process) {
    const auto lease = leases_.find(process);
    return !named.contains(process) && (lease == leases_.end() || lease->second <= now);
  };
  std::erase_if(infos_, [&](const auto& entry) { return forgotten(entry.first); });
  std::erase_if(installed_, [&](const auto& entry) { return forgotten(entry.first); });
  std::erase_if(must_install_, [&](const auto& entry) { return forgotten(entry.first); });
  std::erase_if(gone_, forgotten);
  std::erase_if(refused_, forgotten);
  std::erase_if(booted_, forgotten);
  std::erase_if(leases_, [&](const auto& entry) {
    return !named.contains(entry.first) && entry.second <= now;
  });
}

}  // namespace ems::controller
