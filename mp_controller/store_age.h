#pragma once
// Is this controller's store the newest state of its cluster, or was an older copy put back? Pure.
//
// Servers tell: one that belongs to this cluster and has a view which the store knows nothing of
// proves that the store is old. Views were made since, by which others may own slots and hold
// leases. So a start with a stored view listens first, until every server that runs and can reach
// this controller has had the time to speak; one that comes later shows it later. Once the store is
// known to be old no lease is renewed and no view is made, until an operator accepts it, when all
// leases have ended, or this process ends and the right store is put back.
//
// Who has named no cluster, or numbers that no controller makes, proves nothing: it is parked
// alone. Bound: a few words for each node that Membership knows.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/control_rules.h"
#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "mp_controller/membership.h"

namespace ems::controller {

// Threading: one thread (the controller's loop).
class StoreAge final {
 public:
  StoreAge(const MembershipOptions& options, const ControlRules& rules)
      : rules_(rules), lease_(options.lease), listens_for_(ListenFirst(options.heartbeat)) {}

  // After a start: the store has this view, and earlier lives gave leases of at most `lease`.
  // Listens from now on, without an end before Listen.
  void Restore(const DhtView& newest, Duration lease);
  // Servers can reach this controller from `now` on. `heartbeat`: the longest time that one of them
  // may wait between two, where it is longer than this controller's.
  void Listen(TimePoint now, Duration heartbeat = {});
  // Ends the listening when its time has come.
  void Tick(TimePoint now);
  // This process stood still for so long, and has heard nobody meanwhile.
  void Prolong(Duration by);

  // Servers of this cluster may not have spoken yet.
  bool IsListening() const { return listening_ && !IsOld(); }
  bool IsOld() const { return old_since_.has_value(); }
  // Leases may be renewed, and views made.
  bool MayGoOn() const { return !IsListening() && !IsOld(); }
  // For what an operator or client must not change in an older copy.
  // Errors: kFailedPrecondition  it is one
  Status CheckNotOld() const;
  // For what an older copy would do wrong: nothing of it before this is known to be none.
  // Errors: also kUnavailable  listening still: ask again
  Status CheckMayGoOn() const;

  // `names_us`: it said by itself that it belongs to this cluster. Nothing follows before OnHeard:
  // anybody can ask for a name, and the process that has it goes on until then.
  void OnRegistered(Process process, bool names_us);
  // A heartbeat of it has come: from now on it has the name.
  void OnHeard(Process process);
  // It has views up to `highest` that the store knows nothing of. Returns what an operator can do
  // about it; empty when nothing is new. `name`: its own, for people.
  std::string_view OnAhead(Process process, const std::string& name, ViewVersion highest,
                           TimePoint now);
  // It has none.
  void OnKnown(NodeId id) { ahead_.erase(id); }
  // Nothing is known of that node any more.
  void Forget(NodeId id);

  // What an operator accepts: a number beyond which views may start again. A server that is parked
  // alone is not worth what all the others store: its own data_dir has to go.
  // Errors: kFailedPrecondition  this store is not known to be an older copy
  // kUnavailable  more servers may come to be heard, or leases may not have ended: ask again
  Result<ViewVersion> Accept(TimePoint now) const;
  // Views go on beyond `highest`. Who has not followed yet is parked, and proves nothing.
  void OnAccepted(ViewVersion highest);

 private:
  struct Ahead {
    std::string name;
    ViewVersion highest;
  };

  bool IsAccepted(ViewVersion version) const;
  bool Proves(Process process, ViewVersion highest) const;

  const ControlRules rules_;
  Duration lease_;  // the longest that may be in force
  Duration listens_for_;
  bool listening_ = false;
  TimePoint listens_until_{};  // while it listens; max: not before Listen
  std::optional<TimePoint> old_since_;
  ViewVersion accepted_;                // an operator has accepted views up to this one
  ViewVersion proven_;                  // the highest term and epoch that proved it
  std::map<NodeId, Ahead> ahead_;       // servers that are, beyond what is accepted
  std::map<NodeId, uint64_t> members_;  // boot ids of those whose word proves something
  struct Coming {
    uint64_t boot_id = 0;
    bool names_us = false;
  };
  std::map<NodeId, Coming> coming_;  // have registered, and sent no heartbeat yet
};

}  // namespace ems::controller
