#pragma once
// From when on may the new owners of slots take Puts? A pure state machine driven by (event, now).
//
// A view becomes active when every process that lost slots by it, or was replaced by another one of
// its name, cannot take a Put for them any more:
//   - it has installed that view, or a newer one; or
//   - it has stopped in order, or is known to be dead; or
//   - the lease that was given to it last has ended here, and a majority of its peers cannot
//     prolong it either: the views before are closed. A view is closed when so many of its servers
//     have installed a newer one that the rest is no majority, and kQuorumValid has passed since.
//
// A server that knows that it has been refused counts as one that has installed a newer view: it
// does not prolong leases.
//
// Machines that boot. Under one boot of the kernel, a process that has the folder or the socket of
// an earlier one proves that one's death. After a boot nothing proves it: a copy of the machine
// that is started while the first one goes on (a clone, a fail-over that does not stop the first)
// shows the same folder in the same place, and another boot, as well. So a boot ends no lease. But
// when the power of most servers of a view was cut, nobody is left to report a newer view, and that
// view would stay open for ever. Therefore it is closed, too, when at most a quarter of its servers
// are neither silent for sure (they have a newer view, are refused, or dead) nor succeeded by a
// process that has their folder and address after a boot. Whoever goes on by that view needs a
// majority of its servers; more than half of that majority would then be machines that run twice,
// and all of it be cut off from this controller for a lease, as it tells each process that it
// reaches that another one has its name. Operators rule that out: they stop a machine before they
// start a copy of it. Where that is not so, a single copy closes a view of one server, and two one
// of two or three.
//
// Invariant: views become active in their order; an installed view counts for the process (boot id)
// that reported it. Bound: kOpenViewsMax views that are not closed, and those beyond them that an
// operator accepts; views that are not active yet are among them. Of processes, those that these
// views name, and until one of the views is forgotten those that earlier ones named.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cluster/control_rules.h"
#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "mp_controller/cluster_store.h"
#include "mp_controller/membership.h"

namespace ems::controller {

// Threading: one thread (the controller's loop).
class Activation final {
 public:
  static constexpr size_t kOpenViewsMax = 12;

  explicit Activation(const ControlRules& rules) : rules_(rules) {}

  // After a start: a view of an earlier life, oldest first. Whoever it shows may hold a lease until
  // `leased_until`. `active`: a view that was active then.
  void Restore(const DhtView& view, ViewVersion active, TimePoint leased_until);
  // `view` is the newest one from now on.
  void OnPublished(const DhtView& view, TimePoint now);
  // False while the next view has to wait, so that not too many are open.
  bool HasRoom() const { return views_.size() < kOpenViewsMax; }
  size_t open_views() const { return views_.size(); }

  // What is said of a process that no view names is not remembered, here and below.
  void OnInstalled(Process process, ViewVersion installed, TimePoint now);
  // Whether a lease may be given to it: not before it has installed the newest view by which it
  // lost slots, the first one that shows it, and the first one of a new history; nor, to one that
  // was silent or gone, at a view that has been closed: it could tell others of that view again.
  // Cost: O(open views × log servers).
  bool MayRenew(Process process, ViewVersion installed) const;
  void OnRenewed(Process process, TimePoint until);
  // A process of this id and name is there: earlier ones that had its folder locked, or its socket,
  // are dead, or were before their machine booted. An address alone shows nothing: two containers
  // of one machine may each have it.
  void OnThere(const NodeInfo& info, TimePoint now);
  // It knows that it gets no lease: until one is renewed it prolongs nobody's.
  void OnRefused(Process process, TimePoint now);
  // It has stopped in order.
  void OnGone(Process process, TimePoint now);
  // All leases are this much longer: this controller stood still.
  void Prolong(Duration by);
  // An operator says that all processes but those that `lives` names are dead.
  void AcceptLoss(const std::set<Process>& lives, TimePoint now);

  // The newest view that is active, or none. Never goes back.
  ViewVersion Active(TimePoint now);
  // What a later life has to know: the views that count still, and the one that is active.
  ViewWindow Window() const;
  // Processes that the next view to become active waits for; when all are active, those that the
  // oldest one is open for and there is no room for another.
  std::vector<NodeId> WaitsFor(TimePoint now) const;
  // Whether any view waits for a process of this server.
  bool WaitsFor(NodeId id, TimePoint now) const;

 private:
  struct OpenView {
    ViewVersion version;
    std::set<Process> servers;  // those that may prolong each other's leases at this view
    std::set<Process> telling;  // of `servers`, those that may still say that they have this view
    size_t members = 0;         // of which more than half are a majority
    std::set<Process> losers;   // that stop the view from becoming active
    std::optional<TimePoint> closed_at;
  };
  // An open view names it.
  bool Counts(Process process) const;
  // Whether `loser` takes no Puts any more for what it lost by the view of `version`.
  bool IsDone(Process loser, ViewVersion version, TimePoint now) const;
  bool AreClosedBefore(ViewVersion version, TimePoint now) const;
  bool HasInstalled(Process process, ViewVersion version) const;
  // Of the change from the newest view to one with these slots and boot ids. Cost: O(kSlotCount).
  void AddLosers(const SlotTable& slots, const std::map<NodeId, uint64_t>& shown,
                 std::set<Process>* losers) const;
  // Whether `process` may tell others that it has the view of `version`, and no newer one.
  bool Tells(Process process, ViewVersion version) const;
  // What is known of `process` has changed. Cost: O(open views × log servers).
  void Recount(Process process);
  void Close(TimePoint now);
  // Whether no majority of the view's servers can prolong each other's leases by it any more.
  bool HasEnded(const OpenView& view) const;
  bool IsClosed(const OpenView& view, TimePoint now) const {
    return view.closed_at.has_value() && now - *view.closed_at >= kQuorumOver;
  }
  void Trim(TimePoint now);

  const ControlRules rules_;
  std::deque<OpenView> views_;  // oldest first; the last one is the newest
  ViewVersion active_;
  std::map<Process, TimePoint> leases_;       // when the last one given ends
  std::map<Process, ViewVersion> installed_;  // as reported
  // The newest view by which it lost slots, that shows it and did not before, or that began a new
  // history.
  std::map<Process, ViewVersion> must_install_;
  std::set<Process> gone_, refused_;
  std::set<Process> booted_;  // their machines have booted since, as processes of their names show
  std::map<Process, NodeInfo> infos_;  // of all that open views name
  std::map<NodeId, uint64_t> shown_;   // boot ids in the newest view
  SlotTable slots_;                    // likewise
  uint64_t history_ = 0;               // likewise; 0: it tells none
};

}  // namespace ems::controller
