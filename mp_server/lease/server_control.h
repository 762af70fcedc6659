#pragma once
// A server's control plane as one pure state machine: the controller's news come in; the installed
// view, the lease and the slots that may be written follow. server.h gives it threads and calls,
// the simulator (tests/simulation) virtual ones.
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "cluster/control_rules.h"
#include "cluster/view_cache.h"
#include "common/guarded.h"
#include "mp_server/lease/kept_numbers.h"
#include "mp_server/lease/lease_keeper.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/lease/quorum_lease.h"
#include "mp_server/lease/view_installer.h"

namespace ems::server {

// Threading: views, Tell, NewerThan, Events' functions and the read-only ones thread-safe; the rest
// from one thread ("ems-ctl").
class ServerControl final {
 public:
  struct Parts {
    uint64_t boot_id = 0;               // of this process
    const KeptNumbers* kept = nullptr;  // all must outlive it
    Ownership* ownership = nullptr;
    Holdings* holdings = nullptr;
    ControlRules rules = {};
  };
  // `poke`: a step is to be taken soon.
  ServerControl(const Parts& parts, std::function<void()> poke);

  // What the controller's watch fills.
  ViewCache& views() { return views_; }
  // What a LeaseKeeper is to call. It must not outlive this.
  LeaseEvents Events();

  // One step: whether the controller has a view that is not here, and is to be asked for it.
  bool IsBehind() const;
  // The next: takes over what is there. Which view is to be installed is to be made durable; then
  // Finish says how that went.
  std::optional<ViewIdentity> Begin();
  void Finish(const Status& kept) { installer_.Finish(kept); }
  // The last: the servers that are to be asked now, if any. With a view, OnPeers is to follow.
  PeerRound PeersToAsk(TimePoint now);
  void OnPeers(const PeerRound& round, const PeerAnswers& answers, TimePoint asked) {
    quorum_.OnAnswers(round, answers, asked);
  }
  // What is told to another server that asks about this view, beside Ownership::told_version.
  wire::WordTable Tell(ViewVersion asked_for, TimePoint now) {
    return quorum_.Tell(asked_for, now);
  }

  // The view that this server has installed, if it is newer than `than` and the controller does not
  // refuse this server; else null. Thread-safe.
  ViewCache::View NewerThan(ViewVersion than);

  // What the controller of another cluster said, or OK: the last one was this server's own.
  Status Stranger();
  // Another process has taken this server's name.
  bool replaced() const { return replaced_.load(std::memory_order_acquire); }
  // The installed view shows this process.
  bool IsShown();
  // Why this server does not serve, or OK: also for one that is drained, which owns nothing.
  Status Ready();

 private:
  const uint64_t boot_id_;
  Ownership& ownership_;
  Holdings& holdings_;
  const std::function<void()> poke_;
  ViewCache views_;
  ViewInstaller installer_;
  QuorumLease quorum_;
  std::atomic<bool> replaced_{false};
  Guarded<Status> stranger_;
  std::atomic<uint64_t> behind_{0};  // a view that the controller has, packed
  std::atomic<uint64_t> active_{0};  // the epoch that it said last
};

}  // namespace ems::server
