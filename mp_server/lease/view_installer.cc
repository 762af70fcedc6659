#include "mp_server/lease/view_installer.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "mp_server/lease/view_grant.h"

namespace ems::server {
namespace {

// Each view has an epoch of its own, whatever the term: else its controller's store is an older
// copy, which does not know of the one that was installed here.
bool MayFollow(const DhtView& view, const ViewIdentity& highest) {
  if (view.version() == highest.version)
    return highest.fingerprint == 0 || highest.fingerprint == view.Fingerprint();
  return view.version() > highest.version && view.version().epoch() > highest.version.epoch();
}

}  // namespace

std::optional<ViewIdentity> ViewInstaller::Begin() {
  EMS_CHECK(beginning_ == nullptr, "one view at a time");
  ViewCache::View view = views_.view();
  if (view != nullptr && rules_.numbers_are_durable) {
    const ViewIdentity highest = kept_.highest_view();
    if (!MayFollow(*view, highest)) {
      ReportOlder(view->version(), highest.version);
      return std::nullopt;
    }
  }
  // Where the view will not say what others did meanwhile.
  if (expelled_.exchange(false, std::memory_order_acq_rel) && granted_.history == 0) {
    holdings_.KeepBlocks(granted_.owned);
    Forget(granted_.owned);
  }
  if (view == nullptr || !MayInstall(*view)) {
    SetNamespaces(share_);
    return std::nullopt;
  }
  highest_epoch_ = (kept_.knows_views() ? kept_.highest_view().version : view->version()).epoch();
  beginning_ = std::move(view);
  return ViewIdentity{beginning_->version(), beginning_->Fingerprint()};
}

void ViewInstaller::Finish(const Status& kept) {
  EMS_CHECK(beginning_ != nullptr, "Finish without Begin");
  const ViewCache::View view = std::exchange(beginning_, nullptr);
  const ViewVersion version = view->version();
  Status refusal = Prefixed(kept, fmt::format("the number of view {}.{} cannot be kept",
                                              version.term(), version.epoch()));
  {
    auto shown = refusal_.Lock();
    std::swap(*shown, refusal);
  }
  if (kept.ok() || !rules_.numbers_are_durable) {
    InstallView(*view);
    return SetNamespaces(static_cast<double>(granted_.owned.count()) / kSlotCount);
  }
  SetNamespaces(share_);
  if (refusal.ok()) {
    EMS_LOG(kError, "mp_server", "cannot keep the number of view {}.{}, so it is not installed: {}",
            version.term(), version.epoch(), ToString(kept));
  }
}

Status ViewInstaller::Refusal() {
  auto refusal = refusal_.Lock();
  return *refusal;
}

void ViewInstaller::SetNamespaces(double share) {
  const ViewCache::Namespaces namespaces = views_.namespaces();
  const bool same_share = std::exchange(share_, share) == share;
  // Not known yet is not none: what the SSD tier has kept of a namespace that is gone is dropped.
  if (namespaces->version == 0) return;
  if (std::exchange(namespaces_version_, namespaces->version) == namespaces->version && same_share)
    return;
  holdings_.SetNamespaces(*namespaces, std::max(share_, 0.0));
}

bool ViewInstaller::MayInstall(const DhtView& view) const {
  const NodeId self = ownership_.self();
  return self != kNoNode && view.version() > ownership_.version() &&
         !ShowsAnother(view, self, boot_id_, kept_.lineage());
}

void ViewInstaller::InstallView(const DhtView& view) {
  EMS_CHECK(view.version() > ownership_.version(), "view {} after {}", view.version().packed(),
            ownership_.version().packed());
  const NodeId self = ownership_.self();
  const double coming = static_cast<double>(view.slots().CountOf(self)) / kSlotCount;
  ssd::SlotGrant next = GrantOf(view, self, kept_.lineage());
  holdings_.Expect(next);
  if (coming > share_) SetNamespaces(coming);
  const std::bitset<kSlotCount> kept = next.Kept(granted_.Record(0));
  // Slots that move to others while this server stays in the view do not come back in a moment.
  holdings_.KeepBlocks(next.owned.none() ? granted_.owned : granted_.owned & next.owned & ~kept);
  Forget(granted_.owned & next.owned & ~kept);
  granted_ = std::move(next);
  HoldWhatIsInherited(view);
  holdings_.GainSlots(view, granted_, Fresh(view, granted_));
  holdings_.HoldCopies(view, /*widen=*/true);
  (void)ownership_.Install(view);
  EMS_CHECK(ownership_.version() == view.version(), "another thread installs views");
  holdings_.SetOwnedSlots(granted_);
  holdings_.HoldCopies(view, /*widen=*/false);
  ownership_.Settle();
  EMS_LOG(kInfo, "mp_server", "view installed term={} epoch={} nodes={} owned_slots={}{}",
          view.version().term(), view.version().epoch(), view.nodes().size(),
          granted_.owned.count(), view.frozen() ? " frozen" : "");
}

// An earlier life that has installed a view of the era may have taken a change in it.
std::bitset<kSlotCount> ViewInstaller::Fresh(const DhtView& view,
                                             const ssd::SlotGrant& grant) const {
  std::bitset<kSlotCount> fresh;
  const NodeInfo* const shown = view.Find(ownership_.self());
  if (grant.history == 0 || !grant.shown || shown == nullptr || shown->boot_id != boot_id_)
    return fresh;
  for (size_t i = grant.owned._Find_first(); i < kSlotCount; i = grant.owned._Find_next(i))
    fresh[i] = grant.since[i] > highest_epoch_ || !rules_.open_slots_are_fresh;
  return fresh;
}

// The process before this one may go on by an older view, until the first one that shows this
// process is active; also for slots that are this one's since long before, by the storage of both.
void ViewInstaller::HoldWhatIsInherited(const DhtView& view) {
  const NodeInfo* const shown = view.Find(ownership_.self());
  if (shown_ || shown == nullptr || shown->boot_id != boot_id_) return;
  shown_ = true;
  if (rules_.heirs_wait) ownership_.HoldUntil(view.version().epoch());
}

void ViewInstaller::ReportOlder(ViewVersion offered, ViewVersion installed) {
  if (older_reported_.exchange(true, std::memory_order_relaxed)) return;
  EMS_LOG(kError, "mp_server",
          "the controller offers view {}.{} but {}.{} was installed here before: has it lost its "
          "store? Restore it, or start all servers with an empty data_dir",
          offered.term(), offered.epoch(), installed.term(), installed.epoch());
}

// These may have been others' in a view that was not seen here: what they took or removed meanwhile
// is not known, so nothing from before may be served.
void ViewInstaller::Forget(const std::bitset<kSlotCount>& slots) {
  if (slots.none()) return;
  EMS_LOG(kWarn, "mp_server", "out of the view for a while: {} of {} slots start empty",
          slots.count(), granted_.owned.count());
  ssd::SlotGrant closed = granted_;
  closed.owned &= ~slots;
  holdings_.SetOwnedSlots(closed);
  holdings_.SetOwnedSlots(granted_);  // empty, but open for what the installed view gives
}

}  // namespace ems::server
