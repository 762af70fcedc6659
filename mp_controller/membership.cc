#include "mp_controller/membership.h"

#include <algorithm>
#include <utility>

#include "cluster/control_channel.h"
#include "cluster/while_starting.h"
#include "common/check.h"

namespace ems::controller {
namespace {

constexpr size_t kSupersededMax = 8;
// The guard counts nodes lost in this time together with those being lost now.
constexpr Duration kLossWindow = std::chrono::seconds(10);
// Others that vanished at the same moment are seen at most this long after the first.
constexpr Duration kLossWaitMax = std::chrono::seconds(1);
// A node that was up for so many damping times does not count as flapping when it goes down.
constexpr int kStableDampings = 4;

}  // namespace

void Membership::RestoreNode(NodeId id, const std::string& name, uint64_t left_boot_id,
                             NodeTimes times) {
  Member member;
  member.info.id = id;
  member.info.name = name;
  member.info.boot_id = left_boot_id;
  member.times = times;
  if (left_boot_id != 0) member.state = NodeState::kLeft;
  EMS_CHECK(members_.emplace(id, std::move(member)).second, "node id {} twice", id.value());
  ids_[name] = id;
}

void Membership::RestoreView(const DhtView& view, TimePoint now, TimePoint leased_until) {
  for (const NodeInfo& node : view.nodes()) {
    if (!members_.contains(node.id)) RestoreNode(node.id, node.name);
    Member& member = members_.at(node.id);
    // Also one that the view did not come to show: no process of the name has come since.
    const bool left = member.state == NodeState::kLeft;
    EMS_CHECK(member.info.name == node.name, "node {} is \"{}\" and \"{}\"", node.id.value(),
              member.info.name, node.name);
    member.info = node;
    member.shown = node;
    member.state = left ? NodeState::kLeft : NodeState::kLive;
    member.last_heard = member.last_word = now;
    member.kept_until = TimePoint::max();
    member.leased_until = leased_until;
    member.admitted_at = now;
  }
  frozen_ = view.frozen();
  heard_by_ = TimePoint::max();
}

void Membership::Listen(TimePoint now, Duration heartbeat) {
  if (heard_by_ == TimePoint::max())
    heard_by_ = now + kReconnectMost + std::max(options_.lease, heartbeat);
  for (auto& [id, member] : members_) {
    if (member.kept_until == TimePoint::max()) member.kept_until = heard_by_;
  }
}

std::optional<NodeId> Membership::IdOf(const std::string& name) const {
  const auto it = ids_.find(name);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::string Membership::NameOf(NodeId id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? std::string() : it->second.info.name;
}

bool Membership::HasLeft(const std::string& name) const {
  const auto it = ids_.find(name);
  return it != ids_.end() && members_.at(it->second).state == NodeState::kLeft;
}

std::set<Process> Membership::Lives() const {
  std::set<Process> lives;
  for (const auto& [id, member] : members_)
    if (member.alive() && member.heard) lives.insert({id, member.info.boot_id});
  return lives;
}

Status Membership::CanAddNode() const {
  const auto present = static_cast<size_t>(std::count_if(
      members_.begin(), members_.end(), [](const auto& entry) { return !entry.second.is_gone(); }));
  if (present < kNodesMax) return OkStatus();
  return Error(StatusCode::kResourceExhausted,
               "{} nodes are alive or own slots: more than {} are "
               "not served",
               present, kNodesMax);
}

std::optional<std::string> Membership::NodeToForget() const {
  const Member* oldest = nullptr;
  size_t gone = 0;
  for (const auto& [id, member] : members_) {
    if (!member.is_gone()) continue;
    ++gone;
    if (lost_.contains(id)) continue;
    if (oldest == nullptr || member.last_word < oldest->last_word) oldest = &member;
  }
  if (gone < kGoneNodesMax || oldest == nullptr) return std::nullopt;
  return oldest->info.name;
}

Result<NodeId> Membership::Register(NodeInfo info, TimePoint now) {
  const std::optional<NodeId> id = IdOf(info.name);
  if (!id.has_value()) return Error(StatusCode::kNotFound, "no node \"{}\"", info.name);
  Member& member = members_.at(*id);
  const auto& superseded = member.superseded;
  if (std::find(superseded.begin(), superseded.end(), info.boot_id) != superseded.end()) {
    return Error(StatusCode::kAborted, "a newer process has registered as \"{}\"", info.name);
  }
  info.id = *id;
  const bool is_another = member.info.boot_id != 0 && member.info.boot_id != info.boot_id;
  if (is_another && member.alive()) {
    member.coming = std::move(info);
    return *id;
  }
  TakeOver(&member, std::move(info));
  HearOf(&member, now);
  return *id;
}

void Membership::TakeOver(Member* member, NodeInfo info) {
  auto& superseded = member->superseded;
  if (member->info.boot_id != 0 && member->info.boot_id != info.boot_id) {
    if (superseded.size() == kSupersededMax) superseded.erase(superseded.begin());
    superseded.push_back(member->info.boot_id);
    member->usage = {};
    member->sequence = 0;
    member->installed = {};
    member->ahead = false;
    member->leased_until = {};
  }
  member->info = std::move(info);
  member->coming.reset();
}

void Membership::HearOf(Member* member, TimePoint now) {
  // Once a freeze, so that one that comes and goes does not keep the view frozen.
  const bool was_gone = !member->alive() || !member->heard;
  if (frozen_ && was_gone && member->shown.has_value()) returned_.emplace(member->info.id, now);
  member->state = NodeState::kLive;
  member->heard = true;
  member->last_heard = member->last_word = now;
}

// After a power cut servers come back one after the other. Whose slots are given away the moment
// that most are back comes back to nothing.
bool Membership::OthersMayFollow(TimePoint now) const {
  return std::any_of(returned_.begin(), returned_.end(),
                     [&](const auto& one) { return now - one.second <= options_.lease; });
}

Result<const Membership::Member*> Membership::Find(NodeId id, uint64_t boot_id) const {
  const auto it = members_.find(id);
  if (it == members_.end()) {
    return Error(StatusCode::kNotFound, "no node with id {}: register again", id.value());
  }
  const Member& member = it->second;
  const auto& old = member.superseded;
  if (std::find(old.begin(), old.end(), boot_id) != old.end()) {
    return Error(StatusCode::kAborted, "another process has registered as \"{}\"",
                 member.info.name);
  }
  if (member.IsComing(boot_id)) return &member;
  if (boot_id == 0 || member.info.boot_id != boot_id || member.state == NodeState::kLeft ||
      member.state == NodeState::kUnknown) {
    return Error(StatusCode::kNotFound, "node \"{}\" is not registered with this boot id",
                 member.info.name);
  }
  return &member;
}

bool Membership::IsAnothers(NodeId id, uint64_t boot_id) const {
  const auto it = members_.find(id);
  if (it == members_.end()) return false;
  const auto& old = it->second.superseded;
  return it->second.IsComing(boot_id) || std::find(old.begin(), old.end(), boot_id) != old.end();
}

Status Membership::Check(NodeId id, uint64_t boot_id, uint64_t sequence) const {
  EMS_ASSIGN_OR_RETURN(const Member* const member, Find(id, boot_id));
  if (sequence == 0 || sequence > member->sequence || member->IsComing(boot_id)) return OkStatus();
  return Error(StatusCode::kUnavailable, "heartbeat {} of \"{}\" came after {}", sequence,
               member->info.name, member->sequence);
}

Result<bool> Membership::Heartbeat(NodeId id, uint64_t boot_id, const Word& word, TimePoint now) {
  EMS_RETURN_IF_ERROR(Check(id, boot_id));
  Member& member = members_.at(id);
  if (member.IsComing(boot_id)) TakeOver(&member, *member.coming);
  // The view shows the process before it: this one gets no lease until the view shows it, so its
  // word counts all the same, or the view would never come to show it.
  const bool waits = member.shown.has_value() && member.shown->boot_id != boot_id && !word.ahead;
  if (word.alive || waits) HearOf(&member, now);
  member.last_word = now;
  member.keeps_up = word.alive;
  member.sequence = std::max(member.sequence, word.sequence);
  member.installed = word.installed;
  member.usage = word.usage;
  member.ahead = word.ahead;
  return member.shown.has_value() && member.shown->boot_id == boot_id;
}

Status Membership::Leave(NodeId id, uint64_t boot_id, TimePoint now) {
  EMS_RETURN_IF_ERROR(Check(id, boot_id));
  Member& member = members_.at(id);
  EMS_CHECK(!member.IsComing(boot_id), "node {} leaves before it has come", id.value());
  member.coming.reset();  // it registers again, as one that comes when there is none
  member.state = NodeState::kLeft;
  member.last_heard = member.last_word = now;
  return OkStatus();
}

Status Membership::CanRemove(const std::string& name) const {
  const std::optional<NodeId> id = IdOf(name);
  if (!id.has_value()) return Error(StatusCode::kNotFound, "no node \"{}\"", name);
  const Member& member = members_.at(*id);
  if (member.alive()) {
    return Error(StatusCode::kFailedPrecondition, "node \"{}\" is alive: stop it first", name);
  }
  if (member.shown.has_value()) {
    return Error(StatusCode::kFailedPrecondition, "node \"{}\" still owns slots{}", name,
                 frozen_ ? ": the view is frozen, accept the loss first" : "; try again shortly");
  }
  return OkStatus();
}

void Membership::Remove(const std::string& name) {
  const auto it = ids_.find(name);
  if (it == ids_.end()) return;
  lost_.erase(it->second);
  EMS_CHECK(members_.erase(it->second) == 1, "node \"{}\" has an id and no record", name);
  ids_.erase(it);
}

Status Membership::CheckHeard(TimePoint now) const {
  if (heard_by_ <= now) return OkStatus();
  return Error(StatusCode::kUnavailable,
               "{}servers that live may not have found this controller yet: ask again in {} s",
               kStarting, std::chrono::ceil<std::chrono::seconds>(heard_by_ - now).count());
}

Status Membership::AcceptLoss() {
  if (!frozen_) return Error(StatusCode::kFailedPrecondition, "the view is not frozen");
  loss_accepted_ = true;
  return OkStatus();
}

void Membership::EndLeases(TimePoint now) {
  const Duration gap = last_propose_.has_value() ? now - *last_propose_ : Duration::zero();
  last_propose_ = now;
  const bool paused = gap > std::max<Duration>(options_.heartbeat, kLossWaitMax);
  if (paused && heard_by_ != TimePoint::max()) heard_by_ += gap;
  for (auto& [id, member] : members_) {
    if (!member.alive()) continue;
    if (paused) member.last_heard = std::min(now, member.last_heard + gap);
    if (paused && member.kept_until != TimePoint::max()) member.kept_until += gap;
    if (paused) member.leased_until += gap;
    if (now - member.last_heard <= options_.lease || now < member.leased_until) continue;
    if (!member.heard && now <= member.kept_until) continue;
    member.state = NodeState::kDown;
    member.down_at = now;
  }
}

// While frozen nothing is forgotten: time alone does not bring servers back.
void Membership::ForgetOldLosses(TimePoint now) {
  if (frozen_) return;
  std::erase_if(lost_, [&](const auto& loss) { return now - loss.second > kLossWindow; });
}

void Membership::CountMissing(Proposal* proposal) const {
  for (const auto& [id, member] : members_) {
    const bool shown = member.shown.has_value();
    if (!shown && !lost_.contains(id)) continue;
    if (member.state == NodeState::kLeft) continue;
    ++proposal->members;
    // To thaw takes servers that have really been heard of; to freeze takes leases that have really
    // ended.
    const bool present = member.alive() && (!frozen_ || member.heard);
    if (!present) ++proposal->missing;
  }
}

bool Membership::LossesAreDue(TimePoint now) const {
  std::optional<TimePoint> first;
  TimePoint last_word{};  // of those that are down
  bool damped = false;    // one of them changed the view a moment ago
  for (const auto& [id, member] : members_) {
    if (!member.shown.has_value() || member.state != NodeState::kDown) continue;
    first = first.has_value() ? std::min(*first, member.down_at) : member.down_at;
    last_word = std::max(last_word, member.last_heard);
    damped |= now < member.not_before;
  }
  if (!first.has_value()) return true;
  if (now - *first >= std::min<Duration>(options_.heartbeat, kLossWaitMax)) return true;
  if (damped) return false;
  // Whoever has been heard of well after that did not vanish with them: no need to wait for more.
  const TimePoint alive_since = last_word + options_.heartbeat + options_.heartbeat / 2;
  return std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    return !member.shown.has_value() || !member.alive() || member.last_heard > alive_since;
  });
}

bool Membership::AnyShownIsDown() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.shown.has_value() && entry.second.state == NodeState::kDown;
  });
}

// One that has installed a view will install the next one as well.
bool Membership::MayJoin(const Member& member) {
  return member.installed != ViewVersion() && member.keeps_up && !member.ahead;
}

std::vector<NodeInfo> Membership::NextNodes(bool drop_lost, bool admit, TimePoint now) const {
  std::vector<NodeInfo> nodes;
  for (const auto& [id, member] : members_) {
    // Heard of just now: one that died while it was damped is not admitted only to be dropped
    // again.
    const bool fresh = now - member.last_heard <= options_.heartbeat * 3 / 2;
    const bool may_change =
        member.alive() && fresh && now >= member.not_before && member.info.boot_id != 0;
    if (!member.shown.has_value()) {
      if (admit && may_change && MayJoin(member)) nodes.push_back(member.info);
      continue;
    }
    if (member.state == NodeState::kLeft && admit) continue;
    if (member.state == NodeState::kDown && drop_lost) continue;
    nodes.push_back(may_change ? member.info : *member.shown);
  }
  return nodes;
}

std::vector<NodeInfo> Membership::ShownNodes() const {
  std::vector<NodeInfo> nodes;
  for (const auto& [id, member] : members_) {
    if (member.shown.has_value()) nodes.push_back(*member.shown);
  }
  return nodes;
}

std::optional<Proposal> Membership::Propose(TimePoint now) {
  EndLeases(now);
  ForgetOldLosses(now);
  if (!LossesAreDue(now)) return std::nullopt;
  Proposal proposal;
  CountMissing(&proposal);
  EMS_CHECK(proposal.missing <= proposal.members, "{} of {} are missing", proposal.missing,
            proposal.members);
  const bool most = proposal.missing * 2 > proposal.members;
  const bool waiting = frozen_ && proposal.missing > 0 && OthersMayFollow(now);
  proposal.frozen = !loss_accepted_ && (most || waiting);
  proposal.nodes = NextNodes(!proposal.frozen, !proposal.frozen, now);
  if (proposal.nodes == ShownNodes() && proposal.frozen == frozen_) {
    changed_at_.reset();
    return std::nullopt;
  }
  if (!changed_at_.has_value()) changed_at_ = now;
  // A dead owner is dropped at once: its slots have waited for a whole lease. Other changes are
  // gathered.
  const bool urgent = proposal.frozen != frozen_ || (!proposal.frozen && AnyShownIsDown());
  if (!urgent && now - *changed_at_ < options_.settle) return std::nullopt;
  return proposal;
}

void Membership::Commit(const Proposal& proposal, TimePoint now) {
  std::map<NodeId, const NodeInfo*> next;
  for (const NodeInfo& node : proposal.nodes) {
    EMS_CHECK(members_.contains(node.id), "a view with node {}, which is not known",
              node.id.value());
    next[node.id] = &node;
  }
  for (auto& [id, member] : members_) {
    const auto it = next.find(id);
    if (it != next.end()) {
      if (member.shown == *it->second) continue;
      member.shown = *it->second;
      member.admitted_at = now;
      member.not_before = now + options_.damping;
      lost_.erase(id);
    } else if (member.shown.has_value()) {
      member.shown.reset();
      const bool stable = now - member.admitted_at >= options_.damping * kStableDampings;
      if (!stable) member.not_before = now + options_.damping;
      if (member.state != NodeState::kLeft) lost_[id] = now;
    }
  }
  if (loss_accepted_) lost_.clear();
  loss_accepted_ = false;
  frozen_ = proposal.frozen;
  if (!frozen_) returned_.clear();
  changed_at_.reset();
}

std::vector<MemberStatus> Membership::List(TimePoint now) const {
  std::vector<MemberStatus> list;
  for (const auto& [id, member] : members_) {
    MemberStatus& status = list.emplace_back();
    status.info = member.info;
    status.state = member.state == NodeState::kUnknown ? NodeState::kDown : member.state;
    status.usage = member.usage;
    status.installed = member.installed;
    status.ahead = IsParked(member, now);
    status.never_heard = member.last_word == TimePoint{};
    if (!status.never_heard) status.heartbeat_age = now - member.last_word;
    status.times = member.times;
  }
  return list;
}

Membership::Counts Membership::Count(TimePoint now) const {
  Counts counts;
  for (const auto& [id, member] : members_) {
    if (member.state == NodeState::kLeft) {
      ++counts.left;
    } else if (IsParked(member, now)) {
      ++counts.ahead;
    } else if (member.alive()) {
      ++counts.live;
    } else {
      ++(member.times.left_unix_ms != 0 ? counts.stopped : counts.down);
    }
  }
  return counts;
}

}  // namespace ems::controller
