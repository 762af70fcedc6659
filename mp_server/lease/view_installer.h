#pragma once
// Takes a new view, or a new table of namespaces, over into everything that depends on it, in an
// order in which nothing is served that another server may have changed, and no Put is taken that
// nobody will find:
//
//   1  a view that is older than the highest one that was ever installed here, or whose epoch is
//      lower, or another one with its number, is refused and reported to the operator
//   2  a server that was expelled starts empty where no history says what others did meanwhile
//   3  the number of the view becomes durable (Begin says which); if it cannot, the view is not
//      installed
//   4  namespaces get the room of a larger share, before the first Put that may need it
//   5  blocks of models in slots that go, or start empty, are kept aside
//   6  objects that others may have changed in views that were not seen here go
//   7  slots that come here, and in which nothing has changed yet, are opened for what servers that
//      had them keep (store/moved_slots.h); requests are checked against the view, in which Puts
//      wait where others may take them still,
//   and then what was lost is dropped: a Put that passed
//      the check before is caught when it publishes
//   8  the view is reported: what was lost is taken by others from then on
//   9  namespaces get the share that is left, and what is new in their table
#include <atomic>
#include <bitset>
#include <cstdint>
#include <optional>

#include "cluster/control_rules.h"
#include "cluster/view_cache.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/status.h"
#include "mp_server/lease/kept_numbers.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/ssd/slot_grant.h"

namespace ems::server {

// What a server holds of slots and namespaces. Called from one thread, but where stated.
class Holdings {
 public:
  virtual ~Holdings() = default;
  // `share`: the part of all slots that is this server's.
  virtual void SetNamespaces(const NamespaceTable& table, double share) = 0;
  // What `grant` does not give, or not keep of the one before, is gone when this returns.
  virtual void SetOwnedSlots(const ssd::SlotGrant& grant) = 0;
  // A view with this grant is about to be installed: before anything is asked, or served, by it.
  virtual void Expect(const ssd::SlotGrant& /*next*/) {}
  // `view` gives `grant`, and is about to count. Of the slots in `fresh` it is certain that no life
  // of this server has taken a change since they are its own.
  virtual void GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                         const std::bitset<kSlotCount>& fresh) {
    (void)view, (void)grant, (void)fresh;
  }
  // The view says of what this server holds copies: `widen` before it counts, when those of the
  // view before stay, too, and then without, once what it takes away is gone.
  virtual void HoldCopies(const DhtView& /*view*/, bool /*widen*/) {}
  // Blocks of models in these slots, which are about to go: they are known by the digest of their
  // bytes, so whatever others did meanwhile, they are what they were.
  virtual void KeepBlocks(const std::bitset<kSlotCount>& slots) = 0;
  // Nobody begins to read what may change without this server's help from its return on, for good.
  // From any thread.
  virtual void StopReaders() = 0;
};

// Threading: Begin and Finish from one thread ("ems-ctl"); the rest thread-safe.
class ViewInstaller final {
 public:
  // All must outlive it. `boot_id`: of this process.
  ViewInstaller(ViewCache* views, uint64_t boot_id, const KeptNumbers* kept, Ownership* ownership,
                Holdings* holdings, const ControlRules& rules = {})
      : views_(*views),
        boot_id_(boot_id),
        kept_(*kept),
        ownership_(*ownership),
        holdings_(*holdings),
        rules_(rules) {}

  // Takes over what the cache has by now, but a view: says which one is to be installed, which the
  // caller makes durable and then says how that went.
  std::optional<ViewIdentity> Begin();
  void Finish(const Status& kept);
  // Why the newest view is not installed, or OK.
  Status Refusal();
  // The controller has given this server's slots to others: Install looks at it.
  void OnExpelled() { expelled_.store(true, std::memory_order_release); }
  // Tells the operator, once.
  void ReportOlder(ViewVersion offered, ViewVersion installed);

 private:
  bool MayInstall(const DhtView& view) const;
  void InstallView(const DhtView& view);
  void SetNamespaces(double share);
  std::bitset<kSlotCount> Fresh(const DhtView& view, const ssd::SlotGrant& grant) const;
  void HoldWhatIsInherited(const DhtView& view);
  void Forget(const std::bitset<kSlotCount>& slots);

  ViewCache& views_;
  const uint64_t boot_id_;
  const KeptNumbers& kept_;
  Ownership& ownership_;
  Holdings& holdings_;
  const ControlRules rules_;
  std::atomic<bool> expelled_{false};
  std::atomic<bool> older_reported_{false};
  uint64_t highest_epoch_ = 0;  // that any life of this server may have installed before
  ViewCache::View beginning_;   // its number is being made durable
  Guarded<Status> refusal_;
  bool shown_ = false;      // an installed view shows this process
  ssd::SlotGrant granted_;  // by the installed view
  uint64_t namespaces_version_ = 0;
  double share_ = -1;  // as holdings_ know it
};

}  // namespace ems::server
