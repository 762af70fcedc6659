#pragma once
// Static stability: without the controller a server goes on as long as a majority of the servers of
// its view, itself among them, have that very view. When to ask them, and what their answers give.
// Pure; peer_quorum.h asks.
//
// Invariant: the lease ends here within kQuorumValid of the moments at which each server of some
// majority said that it has this view (peer_words.h).
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "cluster/control_rules.h"
#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/lease/peer_words.h"

namespace ems::server {

// Who is to be asked now.
struct PeerRound {
  std::shared_ptr<const DhtView> view;  // null: nobody
  std::vector<NodeId> peers;            // of that view; none may be left to ask
  Duration next{};                      // how long to wait after this round
};

struct PeerAnswer {
  ViewVersion view;       // that it has; none: it does not say
  wire::WordTable heard;  // what others said to it
};
// Of the processes that the view shows; those that are not there were silent.
using PeerAnswers = std::map<NodeId, PeerAnswer>;

// Threading: Tell thread-safe; the rest from one thread ("ems-ctl").
class QuorumLease final {
 public:
  // `boot_id`: of this process. `ownership` must outlive it.
  QuorumLease(uint64_t boot_id, Ownership* ownership, const ControlRules& rules = {})
      : boot_id_(boot_id), ownership_(*ownership), rules_(rules), words_(boot_id, rules) {}

  // Whether the lease is about to end, and which servers of `view` (null: none) are to be asked.
  PeerRound Begin(std::shared_ptr<const DhtView> view, TimePoint now);
  // Their answers to what was asked at `asked`, or later.
  void OnAnswers(const PeerRound& round, const PeerAnswers& answers, TimePoint asked);

  // What this server has heard of the view `asked_for`, to tell another one; empty when it has
  // another view or says nothing. Cost: O(servers), a leaf lock
  wire::WordTable Tell(ViewVersion asked_for, TimePoint now);

 private:
  bool IsDue(const DhtView* view, TimePoint now);

  const uint64_t boot_id_;
  Ownership& ownership_;
  const ControlRules rules_;
  PeerWords words_;
  Guarded<std::shared_ptr<const HeardWords>> heard_;  // null: nothing; as of the last round
  bool prolonged_ = false;                            // by peers, the last time
};

}  // namespace ems::server
