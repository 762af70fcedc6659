#pragma once
// The one door to the controller's gRPC service, for servers, SDKs and tools.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/hit_curve.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"

namespace ems::v1 {
class RegisterRequest;
class RegisterReply;
class HeartbeatRequest;
class HeartbeatReply;
class ListNodesReply;
class ClusterUpdate;
class ListEventsReply;
class ListEventsRequest;
}  // namespace ems::v1

namespace ems {

// Every call has a deadline and returns kUnavailable or kDeadlineExceeded when the controller does
// not answer, kFailedPrecondition when it is another cluster's than `joined`. Threading:
// thread-safe.
class ControllerClient final {
 public:
  // `address` is host:port, or those of several controllers, of which the leader is asked
  // (leader_calls.h); or all calls fail with kInvalidArgument, which says why. Nothing is connected
  // yet. `watcher` names this process in the controller's log. `joined`: as UnaryCalls,
  // for all but the watch, whose cache says it.
  ControllerClient(const std::string& address, std::string watcher, ViewCache* joined = nullptr);
  ~ControllerClient();  // ends the watch
  ControllerClient(const ControllerClient&) = delete;
  ControllerClient& operator=(const ControllerClient&) = delete;

  // Starts the watch thread "ems-watch", which keeps `cache` fresh for as long as this object
  // lives: it re-connects with back-off, falls back to a whole view after a gap, and drops views
  // that are not newer, or another cluster's. `on_update` (may be empty) runs on that thread after
  // each change of the cache. Call once; `cache` must outlive this object.
  void StartWatch(ViewCache* cache, std::function<void()> on_update);

  Status Register(const v1::RegisterRequest& request, v1::RegisterReply* reply, Deadline deadline);
  Status Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatReply* reply,
                   Deadline deadline);
  // The process takes no Put any more. `keeps_slots`: its slots are not given to others before its
  // lease has ended.
  Status Leave(NodeId node, uint64_t boot_id, bool keeps_slots, Deadline deadline);
  // Fetches view and namespaces, whole, into `cache` (what is not newer is dropped). For calls that
  // cannot wait for the watch. Errors: kFailedPrecondition  the controller of another cluster
  Status Refresh(ViewCache* cache, Deadline deadline);

  Result<NamespaceInfo> CreateNamespace(const NamespaceInfo& wanted, Deadline deadline);
  Result<NamespaceInfo> GetNamespace(const std::string& name, Deadline deadline);
  Result<std::vector<NamespaceInfo>> ListNamespaces(Deadline deadline);
  // What live servers together estimate of the namespace's hit rate; nothing: no look-up yet.
  // Errors: kNotFound  no such namespace
  Result<std::optional<HitCurve>> GetHitCurve(const std::string& name, Deadline deadline);
  Result<NamespaceInfo> UpdateNamespace(const NamespaceInfo& wanted, Deadline deadline);
  Status DeleteNamespace(const std::string& name, Deadline deadline);

  Status ListNodes(v1::ListNodesReply* reply, Deadline deadline);
  // `dram_bytes` 0: as the server's configuration says.
  Status SetNode(const std::string& name, uint64_t dram_bytes, Deadline deadline);
  // `cancel`: it is to have slots again.
  Status DrainNode(const std::string& name, bool cancel, Deadline deadline);
  Status RemoveNode(const std::string& name, Deadline deadline);
  Status AcceptLoss(Deadline deadline);
  Status AcceptAhead(Deadline deadline);
  // Errors: kUnimplemented  of an older controller
  Status ListEvents(const v1::ListEventsRequest& request, v1::ListEventsReply* reply,
                    Deadline deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems
