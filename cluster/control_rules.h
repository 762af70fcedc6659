#pragma once
// The rules of the control plane that each promise rests on, and the times that servers and
// controller have to agree on.
//
// Daemons follow all rules. The simulator (tests/simulation) leaves one out at a time, to show that
// it notices what goes wrong then.
#include <chrono>

#include "cluster/control_channel.h"
#include "common/clock.h"

namespace ems {

struct ControlRules {
  // The controller gives no lease to a server that has not installed the view by which it lost
  // slots, or the first one that shows this very process.
  bool renewals_need_the_view = true;
  // A server takes no Put for slots that it gained before the view is active (activation.h).
  bool puts_wait_for_activation = true;
  // No view is active while a majority may still prolong each other's leases at an older one.
  bool activation_waits_for_peers = true;
  // A server whose lease has ended answers no read of a namespace whose values may change.
  bool reads_need_a_lease = true;
  // A server counts its lease from the moment at which it asked for it, and a little shorter than
  // it is: clocks differ.
  bool leases_end_early = true;
  // A view is installed only when its number is durable, and none below the highest number.
  bool numbers_are_durable = true;
  // A server goes on without the controller only with a majority of the servers of its view.
  bool quorum_is_a_majority = true;
  // What a server says of itself does not get younger by being passed on from one to another.
  bool words_keep_their_age = true;
  // A server that has a view which the controller has not made gets no lease and no slots.
  bool servers_ahead_are_parked = true;
  // A controller listens first whether its store is an older copy, and gives nobody a lease by one.
  bool older_stores_are_noticed = true;
  // Controller and servers of different clusters take nothing of each other.
  bool clusters_are_told_apart = true;
  // Who stopped in order has stopped in order after a restart of the controller as well.
  bool leaving_is_durable = true;
  // No view is made while so many count still that the store could not keep them all.
  bool open_views_are_kept = true;
  // A view ends when most machines of its servers have booted since (activation.h).
  bool boots_close_views = true;
  // But not while more than a quarter of its servers may go on by it, whatever booted.
  bool boots_count_together = true;
  // A process takes no Put before the first view that shows it is active, also for slots that it
  // keeps by the storage of the one before.
  bool heirs_wait = true;
  // A Put is taken only if its server has had the slot, and the lease, from its begin to its end.
  bool puts_are_checked_at_their_end = true;
  // A server lets what another one kept of a slot in only if it has marked every change of the slot
  // since it got it (mp_server/store/moved_slots.h).
  bool changes_are_marked = true;
  // And only if no earlier life of it can have taken a change.
  bool open_slots_are_fresh = true;
  // Once all that others kept of a slot has been brought, nothing of it comes any more, whoever has
  // the slot next: changes are not marked from then on.
  bool finished_slots_close = true;
};

// A server that is cut off from the controller goes on for so long after a majority of the servers
// of its view said that they have this very view. Twice what their words take to get around a
// thousand servers of which four in ten are dead (mp_server/lease/peer_words.h), and what a
// take-over waits longer when an old owner cannot be asked.
inline constexpr Duration kQuorumValid = std::chrono::seconds(1);
// What the controller waits for instead: clocks differ by less than a fiftieth.
inline constexpr Duration kQuorumOver = kQuorumValid + kQuorumValid / 25;
// How long a controller that has started listens before it renews a lease or makes a view: each
// server that lives and can reach it has said by then which views it has. `heartbeat`: the longest
// that any of them goes by. Servers go on meanwhile
// by their leases and by each other, as without a controller.
constexpr Duration ListenFirst(Duration heartbeat) { return kReconnectMost + heartbeat; }
// What a server uses of a lease.
constexpr Duration UsableLease(Duration lease) { return lease - lease / 50; }

}  // namespace ems
