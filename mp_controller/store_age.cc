#include "mp_controller/store_age.h"

#include <algorithm>
#include <chrono>

#include "cluster/while_starting.h"

namespace ems::controller {
namespace {

// A server may claim numbers up to these: what is left is more than all restarts and changes of a
// cluster's life take, so that no server's word ever uses the numbers up.
constexpr uint64_t kTermClaimedMax = ViewVersion::kTermMax / 2;
constexpr uint64_t kEpochClaimedMax = ViewVersion::kEpochMax / 2;

constexpr std::string_view kOldStoreAdvice =
    "this data_dir is an older copy. No server gets a lease, and nothing changes. Stop this "
    "controller and put the right data_dir back, or continue without what servers store (`emsctl "
    "view accept-ahead`). If only that server's data_dir is mistaken: stop it, empty its data_dir, "
    "and "
    "restart this controller";
constexpr std::string_view kParkedAdvice =
    "it gets no lease, and the others continue. Stop that server, empty its data_dir, and start it";

bool IsPossible(ViewVersion version) {
  return version.term() <= kTermClaimedMax && version.epoch() <= kEpochClaimedMax;
}

// No view of either one's past is beyond it, whichever of them was made later.
ViewVersion Cover(ViewVersion a, ViewVersion b) {
  return {std::max(a.term(), b.term()), std::max(a.epoch(), b.epoch())};
}

}  // namespace

void StoreAge::Restore(const DhtView& newest, Duration lease) {
  lease_ = std::max(lease_, lease);
  if (!rules_.older_stores_are_noticed) return;
  listening_ = true;
  listens_until_ = TimePoint::max();
  for (const NodeInfo& node : newest.nodes()) members_[node.id] = node.boot_id;
}

void StoreAge::Listen(TimePoint now, Duration heartbeat) {
  listens_for_ = std::max(listens_for_, ListenFirst(heartbeat));
  if (listens_until_ == TimePoint::max()) listens_until_ = now + listens_for_;
}

void StoreAge::Tick(TimePoint now) {
  if (listens_until_ <= now) listening_ = false;
}

void StoreAge::Prolong(Duration by) {
  if (listens_until_ != TimePoint::max()) listens_until_ += by;
}

Status StoreAge::CheckNotOld() const {
  if (!IsOld()) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "this controller's data_dir is an older copy: put the right one back, or continue "
               "without what servers store (`emsctl view accept-ahead`)");
}

Status StoreAge::CheckMayGoOn() const {
  EMS_RETURN_IF_ERROR(CheckNotOld());
  if (!IsListening()) return OkStatus();
  return Error(StatusCode::kUnavailable,
               "{}servers are heard first, for {} s: ask again in a second", kStarting,
               std::chrono::ceil<std::chrono::seconds>(listens_for_).count());
}

void StoreAge::OnRegistered(Process process, bool names_us) {
  coming_[process.id] = {process.boot_id, names_us};
}

void StoreAge::OnHeard(Process process) {
  const auto coming = coming_.find(process.id);
  if (coming == coming_.end() || coming->second.boot_id != process.boot_id) return;
  const auto known = members_.find(process.id);
  const bool is_known = known != members_.end() && known->second == process.boot_id;
  if (coming->second.names_us) {
    members_[process.id] = process.boot_id;
  } else if (!is_known) {
    members_.erase(process.id);
  }
  coming_.erase(coming);
}

bool StoreAge::Proves(Process process, ViewVersion highest) const {
  const auto member = members_.find(process.id);
  return rules_.older_stores_are_noticed && member != members_.end() &&
         member->second == process.boot_id && IsPossible(highest);
}

std::string_view StoreAge::OnAhead(Process process, const std::string& name, ViewVersion highest,
                                   TimePoint now) {
  if (IsAccepted(highest)) {  // the views made since go beyond its own: it can install them
    ahead_.erase(process.id);
    return {};
  }
  const bool first = ahead_.insert_or_assign(process.id, Ahead{name, highest}).second;
  if (!Proves(process, highest)) return first ? kParkedAdvice : std::string_view();
  const bool noticed = !IsOld();
  if (noticed) old_since_ = now;
  proven_ = Cover(proven_, highest);
  return first || noticed ? kOldStoreAdvice : std::string_view();
}

void StoreAge::Forget(NodeId id) {
  ahead_.erase(id);
  coming_.erase(id);
  members_.erase(id);
}

Result<ViewVersion> StoreAge::Accept(TimePoint now) const {
  if (!IsOld() && ahead_.empty())
    return Error(StatusCode::kFailedPrecondition, "no server is ahead of this controller");
  TimePoint from = listening_ ? listens_until_ : now;
  if (IsOld()) from = std::max(from, *old_since_ + lease_ + kQuorumOver);
  if (now < from) {
    return Error(StatusCode::kUnavailable,
                 "{}servers that live may not have been heard, or hold leases that were given "
                 "before: ask again in {} s",
                 kStarting, std::chrono::ceil<std::chrono::seconds>(from - now).count());
  }
  if (!IsOld()) {
    const Ahead& claim = ahead_.begin()->second;
    return Error(StatusCode::kFailedPrecondition,
                 "server \"{}\" claims view {}.{}, and nothing shows that it is of this cluster: "
                 "stop that server, empty its data_dir, and start it",
                 claim.name, claim.highest.term(), claim.highest.epoch());
  }
  ViewVersion highest = proven_;
  for (const auto& [id, ahead] : ahead_)
    if (IsPossible(ahead.highest)) highest = Cover(highest, ahead.highest);
  return highest;
}

// A view that was made after it has a later epoch, whatever the term.
bool StoreAge::IsAccepted(ViewVersion version) const {
  return version.term() <= accepted_.term() && version.epoch() <= accepted_.epoch();
}

void StoreAge::OnAccepted(ViewVersion highest) {
  accepted_ = Cover(accepted_, highest);
  old_since_.reset();
  proven_ = {};
  std::erase_if(ahead_, [&](const auto& entry) { return IsAccepted(entry.second.highest); });
}

}  // namespace ems::controller
