#pragma once
// Who belongs to the cluster: a pure state machine driven by (event, now). No I/O, no thread, no
// clock of its own.
//
// Events change what is known about nodes; Propose says which nodes the next view should show;
// Commit tells that this view has been published. Invariant: a node is removed from the view only
// when it left in order, or when no word of it that counts has come for a lease; and never while
// more than half of the members are gone (the view is frozen then, until they are back, or until
// most are and no further one has come for a lease). A process that is removed, or replaced by
// another one of its name, may have a lease still: activation.h waits for its end. Bound: kNodesMax
// nodes that live or are shown, kGoneNodesMax others, 8 superseded boot ids each.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/node_usage.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"

namespace ems::controller {

inline constexpr size_t kNodesMax = 4096;      // alive, or shown by the view
inline constexpr size_t kGoneNodesMax = 4096;  // neither, and remembered by name

struct MembershipOptions {
  Duration heartbeat = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(5);
  Duration settle = std::chrono::milliseconds(200);  // changes of this time make one view
  Duration damping = std::chrono::seconds(5);  // a flapping node changes the view once in this time
  // Of drains (publish/drains.h): how long others may fetch from a server that has no slots any
  // more.
  Duration drain_timeout = std::chrono::minutes(10);
};

enum class NodeState { kUnknown, kLive, kDown, kLeft };

// For people: ms since 1970 by the controller's clock; nothing is decided by them.
struct NodeTimes {
  int64_t joined_unix_ms = 0;  // its name was registered first; 0: not known
  int64_t left_unix_ms = 0;    // its process stopped in order; 0: it has not
  friend bool operator==(const NodeTimes&, const NodeTimes&) = default;
};

// One life of a server.
struct Process {
  NodeId id;
  uint64_t boot_id = 0;
  friend auto operator<=>(const Process&, const Process&) = default;
};

// One node as ListNodes shows it.
struct MemberStatus {
  NodeInfo info;
  NodeState state = NodeState::kUnknown;
  NodeUsage usage;
  ViewVersion installed;
  bool ahead = false;
  Duration heartbeat_age{};
  bool never_heard = false;  // since the start
  NodeTimes times;
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

  // After a start: a node known by name. Its id is never given to another name. `left_boot_id`: of
  // the process that stopped in order; 0: none did.
  void RestoreNode(NodeId id, const std::string& name, uint64_t left_boot_id = 0,
                   NodeTimes times = {});
  // After a start: what the stored view showed. Its nodes count as alive until Listen, and until
  // `leased_until`: the leases that an earlier life may have given have ended by then.
  void RestoreView(const DhtView& view, TimePoint now, TimePoint leased_until);
  // From `now` on they can be heard. Those that have not been count as alive for kReconnectMost and
  // a whole lease more, or for `heartbeat` if that is longer, which they may wait between two: a
  // server that lives may find the controller again later than a lease.
  void Listen(TimePoint now, Duration heartbeat = {});

  // The id of `info.name`, or nullopt when the name is new: then the caller makes one durable and
  // gives it to AddNode.
  std::optional<NodeId> IdOf(const std::string& name) const;
  std::string NameOf(NodeId id) const;  // empty: not known
  bool HasLeft(const std::string& name) const;
  // Processes that have been heard of and are not down.
  std::set<Process> Lives() const;
  // Errors: kResourceExhausted  kNodesMax are alive or shown
  Status CanAddNode() const;
  // When kGoneNodesMax are remembered, the name of the one to Remove first: of those that own
  // nothing and whose loss does not count any more, the one that was heard of longest ago. Cost:
  // O(nodes).
  std::optional<std::string> NodeToForget() const;
  void AddNode(NodeId id, const std::string& name, NodeTimes times = {}) {
    RestoreNode(id, name, 0, times);
  }
  // Of a node that is known.
  NodeTimes TimesOf(NodeId id) const { return members_.at(id).times; }
  void SetTimes(NodeId id, NodeTimes times) { members_.at(id).times = times; }

  // A process announces itself under a known name; `info.id` is ignored. Idempotent. A new boot id
  // takes over from the old one: at once when that one is down or has left, else with its first
  // heartbeat, so that one that dies before it serves ends nobody. Errors: kNotFound  AddNode first
  // kAborted  a newer process has taken over from this boot id before
  Result<NodeId> Register(NodeInfo info, TimePoint now);
  // What a heartbeat says. `alive`: it counts; else the node is down when no other one has come for
  // a lease, and it is not admitted. Whom the view shows with the process before it is kept alive
  // all the same, unless it is ahead.
  struct Word {
    uint64_t sequence = 0;  // of the process's heartbeats; 0: not told
    ViewVersion installed;
    NodeUsage usage;
    bool ahead = false;  // it has a view that nobody here has made
    bool alive = true;
  };
  // True when the published view shows this very process.
  // Errors: kNotFound  register again    kAborted  another process has registered under this name
  Result<bool> Heartbeat(NodeId id, uint64_t boot_id, const Word& word, TimePoint now);
  // A later process has taken its name; or it has registered, and has not taken the name over yet.
  bool IsAnothers(NodeId id, uint64_t boot_id) const;
  // Errors: as Heartbeat    kUnavailable  a heartbeat of this `sequence`, or a later one, was there
  Status Check(NodeId id, uint64_t boot_id, uint64_t sequence = 0) const;
  // Errors: as Heartbeat
  Status Leave(NodeId id, uint64_t boot_id, TimePoint now);
  // Forgets a node that is down. Errors: kNotFound  no such name    kFailedPrecondition  alive, or
  // still in the view
  Status CanRemove(const std::string& name) const;
  void Remove(const std::string& name);
  // Whether all that live have had the time to find this controller, after a start with a view.
  // Errors: kUnavailable  not yet: ask again (cluster/while_starting.h)
  Status CheckHeard(TimePoint now) const;
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
  // Each node once; `ahead`: it is there and waits for an operator. `stopped`: its lease has ended
  // as one of `down` has, but its last process stopped in order.
  struct Counts {
    size_t live = 0, down = 0, stopped = 0, left = 0, ahead = 0;
  };
  Counts Count(TimePoint now) const;

 private:
  struct Member {
    NodeInfo info;  // of the process that has the name; boot id 0: of none since the start
    std::optional<NodeInfo> coming;  // has registered and is to take over
    NodeState state = NodeState::kUnknown;
    bool heard = false;  // since the start of the controller
    TimePoint last_word{};
    TimePoint last_heard{};    // the last word that counts
    TimePoint kept_until{};    // as long as it has not been heard
    TimePoint leased_until{};  // at most, by a lease that an earlier life of the controller gave
    TimePoint down_at{};
    std::optional<NodeInfo> shown;  // as the published view has it
    TimePoint admitted_at{};
    TimePoint not_before{};  // damping: no re-admission before this
    std::vector<uint64_t> superseded;
    NodeUsage usage;
    uint64_t sequence = 0;  // of its last heartbeat
    ViewVersion installed;
    bool ahead = false;
    bool keeps_up = false;  // its last word counted
    NodeTimes times;
    bool alive() const { return state == NodeState::kLive; }
    bool is_gone() const { return !alive() && !shown.has_value(); }
    bool IsComing(uint64_t boot_id) const {
      return coming.has_value() && coming->boot_id == boot_id;
    }
  };

  // It is there and waits for an operator.
  bool IsParked(const Member& member, TimePoint now) const {
    return member.ahead && member.state != NodeState::kLeft &&
           now - member.last_word <= options_.lease;
  }
  Result<const Member*> Find(NodeId id, uint64_t boot_id) const;
  void HearOf(Member* member, TimePoint now);
  static void TakeOver(Member* member, NodeInfo info);
  bool OthersMayFollow(TimePoint now) const;
  void EndLeases(TimePoint now);
  void ForgetOldLosses(TimePoint now);
  void CountMissing(Proposal* proposal) const;
  bool LossesAreDue(TimePoint now) const;
  bool AnyShownIsDown() const;
  static bool MayJoin(const Member& member);
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
  TimePoint heard_by_{};                  // those that live; max: not before Listen
  bool loss_accepted_ = false;
  std::optional<TimePoint> changed_at_;  // since when the proposal differs from the view
  std::optional<TimePoint> last_propose_;
};

}  // namespace ems::controller
