#pragma once
// May this server answer for a slot, now? From the installed view, the lease, and what the client's
// frame says.
//
// Invariant: installed views only grow; a Put or Remove is allowed only for an owned slot, under a
// valid lease, and once the controller has said that no server that had the slot before can take
// one (mp_controller/activation.h). A view is told of only once what was lost by it is gone.
#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <vector>

#include "cluster/control_rules.h"
#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "mp_server/lease/kept_numbers.h"
#include "mp_server/store/owned_slots.h"

namespace ems::server {

enum class Verdict : uint8_t {
  kYes,
  kWrongOwner,  // another server has the slot
  kBehind,      // the client knows a newer view: ask again when it has come here
  kHold,        // the server that had the slot may still take Puts: ask again shortly
  kFenced,      // the lease has ended
};

// Threading: thread-safe; Install, Settle, HoldUntil and SetActive from one thread.
class Ownership final {
 public:
  explicit Ownership(const Clock* clock, const ControlRules& rules = {})
      : clock_(clock), rules_(rules) {}

  // Who this server is, once the controller has said so.
  void SetSelf(NodeId self) { self_.store(self.value(), std::memory_order_release); }
  NodeId self() const { return NodeId(self_.load(std::memory_order_acquire)); }

  // Takes over `view` if it is newer and returns what this server owns from now on: requests are
  // checked against it. Nobody is told of it before Settle.
  std::bitset<kSlotCount> Install(const DhtView& view);
  // Nothing of the slots that were lost by the installed view can be read here any more.
  void Settle();
  // Before Install: Puts for all slots wait until the view of `epoch` is active.
  void HoldUntil(uint64_t epoch) { hold_until_ = epoch; }
  // The view that is reported: the last one that is settled. The controller takes it as word that
  // the new owners of slots may take Puts.
  ViewIdentity installed() const;
  // The view that requests are checked against.
  ViewVersion version() const {
    return ViewVersion::FromPacked(version_.load(std::memory_order_acquire));
  }

  // No other server takes Puts for slots that this one has had since `epoch`, or an earlier one.
  void SetActive(uint64_t epoch);
  // Whether Puts for some slots wait for a later SetActive.
  bool HoldsSlots() const { return holds_.load(std::memory_order_relaxed); }

  // The lease holds until `until`; only moves forward. Renew with the time the heartbeat was SENT
  // plus the lease.
  void RenewLease(TimePoint until);
  // The controller has answered, with a lease or without one. As long as it refuses, this server
  // prolongs nobody's lease, its own neither.
  void OnControllerAnswer(bool renewed) { refused_.store(!renewed, std::memory_order_release); }
  bool controller_refuses() const { return refused_.load(std::memory_order_acquire); }
  ViewVersion settled_version() const {
    return ViewVersion::FromPacked(settled_version_.load(std::memory_order_acquire));
  }
  // What it answers who asks which view it has: the last one that is settled.
  ViewVersion told_version() const {
    const bool silent = controller_refuses() || revoked_.load(std::memory_order_acquire);
    return silent ? ViewVersion() : settled_version();
  }
  // Ends it at once and for ever: another process has taken this server's name, or it stops.
  void Revoke();
  bool LeaseValid() const;
  // It has none yet: the controller gives it the first one once it has installed a view that shows
  // it, a heartbeat from then on.
  bool AwaitsFirstLease() const {
    return lease_until() == TimePoint{} && !revoked_.load(std::memory_order_acquire);
  }
  // Zero and less: it has ended. An hour at most.
  Duration LeaseLeft() const {
    return std::min<Duration>(lease_until() - clock_->Now(), std::chrono::hours(1));
  }
  TimePoint lease_until() const {
    return TimePoint(Duration(lease_until_.load(std::memory_order_acquire)));
  }

  // Whether a value that may change can be read: another server may have replaced it once the lease
  // has ended. Cost: reads the clock; once for each request.
  bool MayReadMutable() const { return !rules_.reads_need_a_lease || LeaseValid(); }

  // `client` is the view in the request's frame. Cost: a few atomic loads.
  Verdict CheckRead(SlotId slot, ViewVersion client) const;
  Verdict CheckWrite(SlotId slot, ViewVersion client) const;
  // How often the slot has been lost: who compares it knows whether it was, meanwhile.
  uint32_t losses(SlotId slot) const { return owned_.losses(slot.value()); }
  uint32_t owned_slots() const { return owned_count_.load(std::memory_order_relaxed); }

 private:
  // Holds the slots that are not active yet, and `more`.
  void HoldInactive(const std::bitset<kSlotCount>& more);

  const Clock* const clock_;
  const ControlRules rules_;
  std::atomic<uint32_t> self_{0};
  std::atomic<uint64_t> version_{0};
  std::atomic<int64_t> lease_until_{0};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> refused_{false};
  std::atomic<uint64_t> settled_version_{0};
  mutable Guarded<ViewIdentity> settled_;
  std::atomic<uint32_t> owned_count_{0};
  std::atomic<bool> holds_{false};
  OwnedSlots owned_;
  OwnedSlots held_;  // those of them that wait for SetActive
  // Of Install, Settle, HoldUntil and SetActive.
  uint64_t fingerprint_ = 0;
  std::bitset<kSlotCount> owned_now_, held_now_;
  std::vector<uint64_t> gained_;  // for each slot of owned_now_: by the view of this epoch
  uint64_t active_ = 0;
  uint64_t hold_until_ = 0;
};

}  // namespace ems::server
