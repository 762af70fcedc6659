#pragma once
// Turns of one controller among several: it follows, leads for a tenure, follows again.
//
// The thread "ems-elect" alone works on the lease; "ems-tenure" begins and ends what the controller
// does as the leader, which takes time while the lease has to be prolonged. The lease is let go
// only when the tenure has ended.
//
// Bound: one tenure at a time; it ends within 50 ms, and the time of its `end`, after the lease is
// lost. Nothing rests on that: who has lost the lease writes nothing and answers nobody.
#include <condition_variable>
#include <functional>
#include <string>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "mp_controller/etcd/leader_lease.h"

namespace ems::controller {

// Threading: thread-safe.
class Election final {
 public:
  struct Parts {
    LeaderLease* lease;
    // On "ems-tenure". Begins a tenure. Errors: kUnavailable, kDeadlineExceeded, kCancelled  it is
    // tried again, by this controller or another; all others are final: see fault()
    std::function<Status()> lead;
    // On "ems-tenure". Ends what lead() began, or what it left when it failed.
    std::function<void()> end;
    // On "ems-tenure", after end(), unless the election ends. Errors: final
    std::function<Status()> follow = {};
    // On "ems-elect", after each look at the lease while this controller follows. Errors: those
    // that no time mends, as kDataLoss and kFailedPrecondition, are final; kUnimplemented and
    // kUnauthenticated before etcd has answered alone
    std::function<Status()> look = {};
    // On "ems-elect": each call that has failed.
    std::function<void()> on_error = {};
  };
  explicit Election(Parts parts);
  // Ends the tenure, lets the lease go.
  ~Election();
  Election(const Election&) = delete;
  Election& operator=(const Election&) = delete;

  // Why this controller takes no part any more; OK while it does. An operator has to act.
  Status fault();

 private:
  enum class Phase { kFollowing, kLeading, kEnded };
  struct State {
    Phase phase = Phase::kFollowing;
    bool stopping = false;
    Status fault;
  };
  void Elect();
  void RunTenures();
  void Look();
  void Fail(const Status& fault);
  void Report(const Status& error);
  void GoTo(Phase phase);

  const Parts parts_;
  Guarded<State> state_;
  std::condition_variable changed_;
  std::string reported_;   // of "ems-elect", as the next
  bool answered_ = false;  // it is an etcd that can be used
  StopFlag stop_;
  Thread tenure_;
  Thread elect_;
};

}  // namespace ems::controller
