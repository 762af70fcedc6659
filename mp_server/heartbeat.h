#pragma once
// Registers this server with the controller and renews its lease each second, for as long as it
// runs.
//
// The lease counts from the moment a heartbeat was SENT, so that it ends here before it ends there.
// The controller may be down at the start or later: the thread keeps trying with back-off.
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/thread_pool.h"
#include "mp_controller/view/controller_client.h"
#include "mp_controller/view/node_usage.h"
#include "mp_server/ownership.h"

namespace ems::server {

// Threading: thread-safe; works on its thread "ems-beat".
class Heartbeat final {
 public:
  struct Options {
    NodeInfo self;  // id is ignored
    ControllerClient* controller = nullptr;
    Ownership* ownership = nullptr;
    std::function<NodeUsage()> usage;
    std::function<void(bool ok)> on_beat;        // for metrics
    std::function<void()> on_registered;         // the id is known from now on
    std::function<void(ViewVersion)> on_behind;  // the controller has this newer view
    std::function<void(ViewVersion)> on_older;   // the controller has only this older view
    std::function<void()> on_expelled;           // was in the view and is no longer
    std::function<void()> on_replaced;           // another process has taken this server's name
  };
  explicit Heartbeat(Options options);
  ~Heartbeat();  // stops beating; does not leave
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void Start();
  // Stops beating and tells the controller that the slots are free. Blocks up to `patience`.
  void Leave(Duration patience);

 private:
  void Run();
  Status Register();
  Status Beat();

  Options options_;
  Duration heartbeat_{std::chrono::seconds(1)};
  Duration lease_{std::chrono::seconds(5)};
  bool admitted_ = false;  // touched on "ems-beat" only
  std::atomic<bool> replaced_{false};
  StopFlag stop_;
  Thread thread_;
};

}  // namespace ems::server
