#include "mp_server/lease/server_control.h"

#include <utility>

#include "common/check.h"

namespace ems::server {

ServerControl::ServerControl(const Parts& parts, std::function<void()> poke)
    : boot_id_(parts.boot_id),
      ownership_(*parts.ownership),
      holdings_(*parts.holdings),
      poke_(std::move(poke)),
      installer_(&views_, parts.boot_id, parts.kept, parts.ownership, parts.holdings, parts.rules),
      quorum_(parts.boot_id, parts.ownership, parts.rules) {
  if (parts.rules.clusters_are_told_apart)
    EMS_CHECK(views_.Join(parts.kept->cluster()).ok(), "another cluster was here first");
}

LeaseEvents ServerControl::Events() {
  return {
      .on_registered = poke_,
      .on_behind =
          [this](ViewVersion newest) {
            behind_.store(newest.packed(), std::memory_order_release);
            poke_();
          },
      .on_older =
          [this](ViewVersion offered) { installer_.ReportOlder(offered, ownership_.version()); },
      .on_expelled =
          [this] {
            installer_.OnExpelled();
            poke_();
          },
      .on_replaced =
          [this] {
            holdings_.StopReaders();  // the controller is told next that this server serves no more
            replaced_.store(true, std::memory_order_release);
            poke_();
          },
      .on_active =
          [this](uint64_t epoch) {
            if (active_.exchange(epoch, std::memory_order_acq_rel) != epoch) poke_();
          },
      .on_stranger =
          [this](const Status& what) {
            auto stranger = stranger_.Lock();
            *stranger = what;
          }};
}

bool ServerControl::IsBehind() const {
  return behind_.load(std::memory_order_acquire) > ownership_.version().packed();
}

std::optional<ViewIdentity> ServerControl::Begin() {
  behind_.store(0, std::memory_order_relaxed);  // the next heartbeat says so again
  ownership_.SetActive(active_.load(std::memory_order_acquire));
  return installer_.Begin();
}

PeerRound ServerControl::PeersToAsk(TimePoint now) {
  if (replaced()) return {};
  return quorum_.Begin(views_.view(), now);
}

// Only what it has installed: a view that it may not install is none for others either.
ViewCache::View ServerControl::NewerThan(ViewVersion than) {
  ViewCache::View view = views_.view();
  const ViewVersion told = ownership_.told_version();
  return view != nullptr && view->version() == told && told > than ? view : nullptr;
}

Status ServerControl::Stranger() {
  auto stranger = stranger_.Lock();
  return *stranger;
}

bool ServerControl::IsShown() {
  const ViewCache::View view = views_.view();
  if (view == nullptr || view->version() != ownership_.version()) return false;
  const NodeInfo* const shown = view->Find(ownership_.self());
  return shown != nullptr && shown->boot_id == boot_id_;
}

Status ServerControl::Ready() {
  EMS_RETURN_IF_ERROR(Stranger());
  if (replaced()) return Error(StatusCode::kFailedPrecondition, "another server has this name");
  if (ownership_.self() == kNoNode)
    return Error(StatusCode::kUnavailable, "not registered: no answer from the controller");
  EMS_RETURN_IF_ERROR(installer_.Refusal());
  if (ownership_.version() == ViewVersion()) return Error(StatusCode::kUnavailable, "no view yet");
  if (!ownership_.LeaseValid())
    return Error(StatusCode::kUnavailable, "no lease: the controller gives none");
  if (ownership_.owned_slots() == 0 && !IsShown())
    return Error(StatusCode::kUnavailable, "not admitted to the view yet");
  return OkStatus();
}

}  // namespace ems::server
