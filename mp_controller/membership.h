#pragma once
// Who belongs to the cluster: a pure state machine driven by (event, now). No I/O, no thread, no
// clock of its own.
//
// Events change what is known about nodes; Propose says which nodes the next view should show;
// Commit tells that this view has been published. Invariant: a node is removed from the view only
// after its lease ended or it left in order, and never while more than half of the members are gone
// (the view is frozen then, until they are back, or until most are and no further one has come for
// a lease). Bound: kKnownNodesMax nodes, 8 superseded boot ids each.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "mp_controller/view/dht_view.h"
#include "mp_controller/view/node_usage.h"

namespace ems::controller {

inline constexpr size_t kKnownNodesMax = 1024;

struct MembershipOptions {
  Duration heartbeat = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(5);
  Duration settle = std::chrono::milliseconds(200);  // changes of this time make one view
  Duration damping = std::chrono::seconds(5);  // a flapping node changes the view once in this time
};

enum class NodeState { kUnknown, kLive, kDown, kLeft };

// One node as ListNodes shows it.
struct MemberStatus {
  NodeInfo info;
  NodeState state = NodeState::kUnknown;
  NodeUsage usage;
  ViewVersion installed;
  bool ahead = false;
  Duration heartbeat_age{};
};

// What the next view should show.
struct Proposal {
  std::vector<NodeInfo> nodes;  // sorted by id
  bool frozen = false;          // then the slot table stays as it is
  size_t members = 0;           // of the guard: nodes of the view and those lost shortly before,
  size_t missing = 0;           // and how many of them are gone
};

// Threading: one thread (the controller's loop).
class Membership final {
 public:
  explicit Membership(const MembershipOptions& options) : options_(options) {}

  // After a start: a node known by name. Its id is never given to another name.
  void RestoreNode(NodeId id, const std::string& name);
  // After a start: what the stored view showed. Its nodes count as alive until Listen.
  void RestoreView(const DhtView& view, TimePoint now);
  // From `now` on they can be heard. Those that have not been count as alive for kReconnectMost and
  // a whole lease more: a server that lives may find the controller again later than a lease.
  void Listen(TimePoint now);

  // The id of `info.name`, or nullopt when the name is new: then the caller makes one durable and
  // gives it to AddNode.
  std::optional<NodeId> IdOf(const std::string& name) const;
  // Errors: kResourceExhausted  kKnownNodesMax reached
  Status CanAddNode() const;
  void AddNode(NodeId id, const std::string& name) { RestoreNode(id, name); }

  // A process announces itself under a known name; `info.id` is ignored. Idempotent. A new boot id
  // takes over from the old one. Errors: kNotFound  AddNode first    kAborted  a newer process has
  // taken over from this boot id before
  Result<NodeId> Register(NodeInfo info, TimePoint now);
  // Renews the lease; true when the published view shows this very process.
  // Errors: kNotFound  register again    kAborted  another process has registered under this name
  Result<bool> Heartbeat(NodeId id, uint64_t boot_id, ViewVersion installed, const NodeUsage& usage,
                         TimePoint now);
  // Remembers, until the next life of the node, that it has a view which nobody here has made; true
  // the first time.
  bool MarkAhead(NodeId id);
  // Errors: as Heartbeat
  Status Leave(NodeId id, uint64_t boot_id, TimePoint now);
  // Forgets a node that is down. Errors: kNotFound  no such name    kFailedPrecondition  alive, or
  // still in the view
  Status CanRemove(const std::string& name) const;
  void Remove(const std::string& name);
  // Errors: kFailedPrecondition  the view is not frozen
  Status AcceptLoss();

  // Ends leases, and says what the view should become; nullopt while nothing has to change (yet).
  // Call at least once a heartbeat interval: a longer gap means that this process was paused, and
  // prolongs all leases by it.
  std::optional<Proposal> Propose(TimePoint now);
  // The view of `proposal` is published.
  void Commit(const Proposal& proposal, TimePoint now);

  std::vector<MemberStatus> List(TimePoint now) const;
  bool frozen() const { return frozen_; }
  size_t live_count() const;
  size_t known_count() const { return members_.size(); }

 private:
  struct Member {
    NodeInfo info;  // as registered last; boot id 0: not since the start
    NodeState state = NodeState::kUnknown;
    bool heard = false;  // since the start of the controller
    TimePoint last_heard{};
    TimePoint kept_until{};  // as long as it has not been heard
    TimePoint down_at{};
    std::optional<NodeInfo> shown;  // as the published view has it
    TimePoint admitted_at{};
    TimePoint not_before{};  // damping: no re-admission before this
    std::vector<uint64_t> superseded;
    NodeUsage usage;
    ViewVersion installed;
    bool ahead = false;
    bool alive() const { return state == NodeState::kLive; }
  };

  Result<Member*> Find(NodeId id, uint64_t boot_id);
  void HearOf(Member* member, TimePoint now);
  bool OthersMayFollow(TimePoint now) const;
  void EndLeases(TimePoint now);
  void ForgetOldLosses(TimePoint now);
  void CountMissing(Proposal* proposal) const;
  bool LossesAreDue(TimePoint now) const;
  bool AnyShownIsDown() const;
  // Nodes of the next view when losses are acted upon (`drop_lost`) or kept, and new ones admitted
  // or not.
  std::vector<NodeInfo> NextNodes(bool drop_lost, bool admit, TimePoint now) const;
  std::vector<NodeInfo> ShownNodes() const;

  const MembershipOptions options_;
  std::map<NodeId, Member> members_;
  std::map<std::string, NodeId> ids_;
  std::map<NodeId, TimePoint> lost_;  // removed from the view because their lease ended, and when
  bool frozen_ = false;
  std::map<NodeId, TimePoint> returned_;  // of those that were gone: when each came back first
  bool loss_accepted_ = false;
  std::optional<TimePoint> changed_at_;  // since when the proposal differs from the view
  std::optional<TimePoint> last_propose_;
};

}  // namespace ems::controller
