#pragma once
// A server's side of its lease: registers with the controller, renews the lease, and hears of newer
// views. A pure state machine driven by (answer, time); heartbeat.h makes the calls.
//
// A controller of another cluster is asked again and again, as its address may be corrected, and
// nothing that it says changes anything.
//
// Invariant: the lease counts from the moment a heartbeat was SENT, and a fiftieth less than it
// was given, so that it ends here before it ends there. Each answer says how long a lease is, and
// when the next heartbeat is due: a controller that was restarted may have other times.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/control_rules.h"
#include "cluster/node_usage.h"
#include "cluster/quota_part.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/retry.h"
#include "common/status.h"
#include "mp_server/lease/ownership.h"

namespace ems::v1 {
class HeartbeatReply;
class HeartbeatRequest;
class RegisterReply;
class RegisterRequest;
}  // namespace ems::v1

namespace ems::server {

// What others have to know. Called on the keeper's thread; must not block.
struct LeaseEvents {
  std::function<void()> on_registered;         // the id is known from now on
  std::function<void(ViewVersion)> on_behind;  // the controller has this newer view
  std::function<void(ViewVersion)> on_older;   // the controller has only this older view
  std::function<void()> on_expelled;           // was in the view and is no longer
  // Another process has taken this server's name. The controller is told, after its return, that
  // this one serves no more.
  std::function<void()> on_replaced;
  // Bytes of memory that an operator has set; 0: none.
  std::function<void(uint64_t)> on_dram = [](uint64_t) {};
  // Parts of quotas that this server is to hold by the view that is installed.
  std::function<void(const std::vector<QuotaPart>&)> on_quota_parts =
      [](const std::vector<QuotaPart>&) {};
  std::function<void(uint64_t)> on_active;  // views up to this epoch are active
  // The controller is another cluster's, as it or this server says; OK: it is not, after all.
  std::function<void(const Status&)> on_stranger;
};

// Threading: one thread.
class LeaseKeeper final {
 public:
  // `self.id` is ignored. `views` says which cluster this server belongs to. Both pointers must
  // outlive it.
  LeaseKeeper(NodeInfo self, Ownership* ownership, ViewCache* views, LeaseEvents events,
              const ControlRules& rules = {});

  bool registered() const { return registered_; }
  bool replaced() const { return replaced_; }
  const NodeInfo& self() const { return self_; }
  Duration heartbeat() const { return heartbeat_; }

  void MakeRegister(v1::RegisterRequest* request) const;
  // The next one. `highest`: the highest view that was ever installed here.
  void MakeHeartbeat(const NodeUsage& usage, const ViewIdentity& highest,
                     v1::HeartbeatRequest* request);

  // How long to wait before the next call; nullopt: there is none, another process has the name.
  std::optional<Duration> OnRegister(const Status& status, const v1::RegisterReply& reply);
  // `sent` and `now`: when the heartbeat went and its answer came.
  std::optional<Duration> OnHeartbeat(const Status& status, const v1::HeartbeatReply& reply,
                                      TimePoint sent, TimePoint now);

 private:
  std::optional<Duration> AfterError(const Status& status);
  std::optional<Duration> AfterStranger(const Status& status);
  // Errors: kFailedPrecondition  an answer of another cluster
  Status CheckCluster(uint64_t answered);
  void OnOwnController();
  void Take(const v1::HeartbeatReply& reply, TimePoint sent, TimePoint now);

  NodeInfo self_;
  Ownership& ownership_;
  ViewCache& views_;
  const LeaseEvents events_;
  const ControlRules rules_;
  Duration heartbeat_{std::chrono::seconds(1)};
  Duration lease_{std::chrono::seconds(5)};
  uint64_t heartbeats_ = 0;  // that were made
  bool registered_ = false;
  bool admitted_ = false;
  bool replaced_ = false;
  bool stranger_ = false;  // the last answer was one of another cluster
  Backoff after_errors_;
  Backoff while_held_;
};

}  // namespace ems::server
