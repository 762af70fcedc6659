#pragma once
// May this server answer for a slot, now? From the installed view, the lease, and what the client's
// frame says.
//
// Invariant: installed views only grow; a Put or Remove is allowed only for an owned slot, under a
// valid lease, and for a slot taken over from a server that did not say goodbye only after
// kTakeoverHold: by then that server has fenced itself.
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>

#include "common/clock.h"
#include "common/ids.h"
#include "mp_controller/view/dht_view.h"

namespace ems::server {

// A cut-off server may go on for kQuorumValid after it last heard a majority (peer_quorum.h). Views
// reach live servers well within the rest.
inline constexpr Duration kQuorumValid = std::chrono::milliseconds(500);
inline constexpr Duration kTakeoverHold = std::chrono::milliseconds(700);

enum class Verdict : uint8_t {
  kYes,
  kWrongOwner,  // another server has the slot
  kBehind,      // the client knows a newer view: ask again when it has come here
  kHold,        // the slot was taken over just now: ask again shortly
  kFenced,      // the lease has ended
};

// Threading: thread-safe; Install from one thread.
class Ownership final {
 public:
  explicit Ownership(const Clock* clock) : clock_(clock) {}

  // Who this server is, once the controller has said so.
  void SetSelf(NodeId self) { self_.store(self.value(), std::memory_order_release); }
  NodeId self() const { return NodeId(self_.load(std::memory_order_acquire)); }

  // Takes over `view` if it is newer and returns what this server owns from now on.
  std::bitset<kSlotCount> Install(const DhtView& view);
  ViewVersion version() const {
    return ViewVersion::FromPacked(version_.load(std::memory_order_acquire));
  }

  // The lease holds until `until`; only moves forward. Renew with the time the heartbeat was SENT
  // plus the lease.
  void RenewLease(TimePoint until);
  // Ends it at once: another process has taken this server's name.
  void Revoke();
  bool LeaseValid() const;
  TimePoint lease_until() const {
    return TimePoint(Duration(lease_until_.load(std::memory_order_acquire)));
  }

  // `client` is the view in the request's frame. Cost: a few atomic loads.
  Verdict CheckRead(SlotId slot, ViewVersion client) const;
  Verdict CheckWrite(SlotId slot, ViewVersion client) const;
  uint32_t owned_slots() const { return owned_count_.load(std::memory_order_relaxed); }

 private:
  using Bitmap = std::array<std::atomic<uint64_t>, kSlotCount / 64>;
  static bool Test(const Bitmap& bits, SlotId slot) {
    return (bits[slot.value() / 64].load(std::memory_order_acquire) >> (slot.value() % 64) & 1) !=
           0;
  }
  static void Store(const std::bitset<kSlotCount>& from, Bitmap* to);

  const Clock* clock_;
  std::atomic<uint32_t> self_{0};
  std::atomic<uint64_t> version_{0};
  std::atomic<int64_t> lease_until_{0};
  std::atomic<bool> revoked_{false};
  std::atomic<int64_t> hold_until_{0};
  std::atomic<uint32_t> owned_count_{0};
  Bitmap owned_{};
  Bitmap held_{};                      // slots under kTakeoverHold
  std::bitset<kSlotCount> owned_now_;  // Install's own copy
  SlotTable last_owners_;              // of the view before
};

}  // namespace ems::server
