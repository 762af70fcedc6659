#include "mp_server/request_check.h"

#include "common/check.h"

namespace ems::server {
namespace {

constexpr uint32_t kRetryHoldMs = 100;
constexpr uint32_t kRetryDrainMs = 1000;
// How long a read waits here for this server's first lease; its own deadline may be sooner.
constexpr Duration kLeasePatience = std::chrono::seconds(1);

}  // namespace

using fabric::Outcome;
using wire::WireStatus;

Outcome RequestCheck::Reached(const wire::FrameHeader& request, Refusal* refusal) const {
  if (draining_.load(std::memory_order_acquire)) return {SayDraining(refusal)};
  return HasView(request) ? Outcome() : SayBehind(request, refusal);
}

// What a view takes away is kept for its next owner only once that view is settled.
bool RequestCheck::HasView(const wire::FrameHeader& request) const {
  return request.view_version() <=
         (IsOfKept(request.op) ? ownership_->settled_version() : ownership_->version());
}

Outcome RequestCheck::SayBehind(const wire::FrameHeader& request, Refusal* refusal) const {
  if (on_newer_view_ && request.view_version() > ownership_->version()) on_newer_view_();
  return {refusal->Say(WireStatus::kWrongOwner,
                       "this server has not seen the view of this request yet"),
          kLookAgain};
}

Outcome RequestCheck::Open(const wire::FrameHeader& request, TieredNamespace* objects,
                           Refusal* refusal) const {
  if (draining_.load(std::memory_order_acquire)) return {SayDraining(refusal)};
  if (!store_->Open(request.ns(), objects)) {
    // It may have been made a moment ago; its news is on the way here.
    return {refusal->Say(
                WireStatus::kStaleNamespace,
                fmt::format("namespace {} generation {} is not known here: deleted, or too new",
                            request.namespace_id, request.namespace_generation)),
            kLookAgain};
  }
  if (!HasView(request)) return SayBehind(request, refusal);
  if (wire::IsRead(request.op) && !objects->immutable() && !ownership_->MayReadMutable()) {
    const bool soon = ownership_->AwaitsFirstLease();
    return {Refuse(Verdict::kFenced, request.slot_id(), refusal),
            soon ? kLookAgain : Duration::zero(), kLeasePatience};
  }
  return {};
}

WireStatus RequestCheck::SayDraining(Refusal* refusal) {
  return refusal->Say(WireStatus::kRetryLater, "this server is stopping", kRetryDrainMs);
}

WireStatus RequestCheck::Refuse(Verdict verdict, SlotId slot, Refusal* refusal) const {
  switch (verdict) {
    case Verdict::kYes:
      return WireStatus::kOk;
    case Verdict::kWrongOwner:
      return refusal->Say(WireStatus::kWrongOwner,
                          fmt::format("slot {} is not here", slot.value()));
    case Verdict::kHold:
      return refusal->Say(WireStatus::kRetryLater, "slot taken over just now", kRetryHoldMs);
    case Verdict::kFenced:
      // A server that joins is in the view before its first lease: clients that have that view wait
      // for it, as they do for a slot that changes hands.
      if (ownership_->AwaitsFirstLease() || ownership_->LeaseValid())  // it may have just come
        return refusal->Say(WireStatus::kRetryLater, "this server waits for its first lease",
                            kRetryHoldMs);
      return refusal->Say(WireStatus::kFenced,
                          "this server's lease has ended: another may have the slot by now");
    case Verdict::kBehind:
      break;
  }
  EMS_CHECK(false, "no request without a view is ahead of this server");
}

}  // namespace ems::server
