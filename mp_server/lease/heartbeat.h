#pragma once
// Registers this server with the controller and renews its lease each second, for as long as it
// runs: the thread and the calls around lease_keeper.h.
//
// The controller may be down at the start or later: the thread keeps trying with back-off.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <vector>

#include "cluster/controller_client.h"
#include "cluster/node_usage.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"
#include "mp_server/lease/lease_keeper.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/lease/planned_stop.h"

namespace ems::server {

// Threading: thread-safe; works on its thread "ems-beat".
class Heartbeat final {
 public:
  struct Options {
    NodeInfo self;  // id is ignored
    ControllerClient* controller = nullptr;
    Ownership* ownership = nullptr;
    ViewCache* views = nullptr;  // says which cluster this server belongs to
    std::function<NodeUsage()> usage;
    std::function<ViewIdentity()> highest_view;  // that was ever installed here
    // Who keeps something that this server has still to bring. After the installed view was read:
    // a heartbeat that says a view is installed names those that its slots came from.
    std::function<std::vector<NodeId>()> pulling_from = [] { return std::vector<NodeId>(); };
    // Whom those ask, too, that pull from this server. Called after pulling_from: a slot that is
    // lost in between is in both.
    std::function<std::vector<NodeId>()> vouching_for = [] { return std::vector<NodeId>(); };
    std::function<void(bool ok)> on_beat;  // for metrics
    LeaseEvents events;
  };
  explicit Heartbeat(Options options);
  ~Heartbeat();  // stops beating; does not leave
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void Start();
  // The next heartbeat goes at once: there is something to report.
  void Poke();
  // This server is to stop: says so with each heartbeat from now on, which come faster, the first
  // one now. stop_answer() tells what the controller says.
  void AnnounceStop();
  StopAnswer stop_answer() const { return stop_answer_.load(std::memory_order_acquire); }
  // Stops beating: nothing of Options is called from its return on.
  void Halt();
  // Stops beating and tells the controller that this process takes no Put any more. `keeps_slots`:
  // the next process of its name finds what is stored; else they are free. Blocks up to `patience`.
  void Leave(bool keeps_slots, Duration patience);

 private:
  struct Wake {
    bool stop = false;
    bool poked = false;
  };
  void Run();
  void SayGoodbye();
  // True: stop.
  bool Sleep(Duration time);
  void Stop();
  std::optional<Duration> Register();
  std::optional<Duration> Beat();
  void OnStopAnswer(const Status& status, bool may_stop);

  Options options_;
  LeaseKeeper keeper_;  // touched on "ems-beat" only, while it runs
  Guarded<Wake> wake_;
  std::condition_variable wakeup_;
  std::atomic<bool> stop_announced_{false};                 // by who calls, for "ems-beat"
  std::atomic<StopAnswer> stop_answer_{StopAnswer::kNone};  // the other way
  Thread thread_;
};

}  // namespace ems::server
