#pragma once
// What "ems-ctl" asks other servers in a step: which view they have, while the controller is away
// and the lease is about to end; and for a newer view, when a request or their answers have shown
// that there is one.
#include <functional>

#include "common/clock.h"
#include "mp_server/lease/newer_view.h"
#include "mp_server/lease/peer_quorum.h"
#include "mp_server/lease/peer_view.h"
#include "mp_server/lease/server_control.h"

namespace ems::server {

// Threading: OnNewerView thread-safe; the rest from one thread ("ems-ctl").
class PeerRounds final {
 public:
  static constexpr Duration kEvery = std::chrono::milliseconds(250);  // a step of who asks nobody

  // Both must outlive it. `poke`: a step is to be taken soon. `seed`: of whom it asks.
  PeerRounds(ServerControl* lease, const Ownership* ownership, uint64_t seed,
             std::function<void()> poke)
      : lease_(*lease), ownership_(*ownership), poke_(std::move(poke)), view_(seed) {}

  // A request has a view that is newer than this server's.
  void OnNewerView();

  // Begins a step. Asks other servers for a newer view if that is due, and takes what they have.
  // True: the controller is to be asked as well, by a heartbeat: its answer says that there is one,
  // and its thread may wait for it. This one may not: leases rest on its rounds.
  [[nodiscard]] bool FindNewerView();
  void OnInstalled() { newer_.OnInstalled(); }
  // Ends a step: asks for words where the lease needs them. How long to wait for the next step.
  Duration AskForWords();

 private:
  ServerControl& lease_;
  const Ownership& ownership_;
  const std::function<void()> poke_;
  NewerView newer_;
  PeerQuorum words_;
  PeerView view_;
};

}  // namespace ems::server
