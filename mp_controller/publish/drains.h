#pragma once
// Servers that are taken out while they are in the view: which of them get no slots in the next
// view, and when nobody needs them any more. A pure state machine driven by (event, now).
//
// An operator drains a server by its name, or its process says that it stops. Its slots go to
// others, and it stays in the view, so that these ask it for what it keeps of them.
//
// Invariant: a drain says who owns slots in a view, and nothing else. The view that gives them away
// is one like any other: when its new owners take Puts, and who gets a lease, is activation.h's to
// say, which knows nothing of drains. And a drain leaves no slot without an owner: where all
// servers are drained, those whose process goes on own the slots, and where all stop, they stay as
// they are.
//
// A server is drained when it owns nothing, the view by which it lost its last slots is active, and
// each server of the view has installed that one and says that it fetches nothing from it, nor from
// a server that sends it on to this one; or `patience` after that view, whatever they say. Bound: a
// record for each server that is drained or was heard of.
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"

namespace ems::controller {

enum class DrainState : uint8_t { kNone, kDraining, kDrained };

struct DrainStatus {
  DrainState state = DrainState::kNone;
  bool stopping = false;  // its process stops: no operator drains it
  bool may_stop = false;  // nobody needs it, or nobody could take its slots
  size_t pulled_by = 0;   // servers that fetch from it, or may begin to
  size_t pulls_from = 0;  // servers that it fetches from, drained or not
};

// Threading: one thread (the controller's loop).
class Drains final {
 public:
  struct Options {
    Duration settle = std::chrono::milliseconds(200);  // changes of this time make one view
    Duration patience = std::chrono::minutes(10);
  };
  explicit Drains(const Options& options) : options_(options) {}

  // What an operator says of the server; it holds for each process of it.
  void Set(NodeId id, bool drained);
  bool IsSet(NodeId id) const { return wanted_.contains(id); }
  void Forget(NodeId id);
  // What a process says with a heartbeat.
  struct Word {
    uint64_t boot_id = 0;
    ViewVersion installed;
    bool stopping = false;
    std::vector<NodeId> pulling_from;
    std::vector<NodeId> vouching_for{};  // whom those ask, too, that pull from it
  };
  void OnWord(NodeId id, Word word);

  // Whether another server of the view could have the slots of this one, which it may not show.
  // Errors: kFailedPrecondition  there is none
  Status Check(NodeId id, const DhtView& view) const;

  // Of the nodes of a view, those that are to own slots in it: none of those that are drained, as
  // far as there are others.
  std::vector<NodeInfo> OwnersOf(std::span<const NodeInfo> nodes) const;
  // Whether the newest view's slots are to be given out again, for the same nodes. Call it each
  // tick.
  bool IsDue(const DhtView& view, TimePoint now);
  // `view` is the newest from now on. `given_out`: its slots went to OwnersOf its nodes; else they
  // are those of the view before, or of an earlier life.
  void OnPublished(const DhtView& view, bool given_out, TimePoint now);

  // `active`: the newest view that is. Cost: O(kSlotCount + nodes) where it is drained, else
  // O(log nodes).
  DrainStatus StatusOf(NodeId id, const DhtView& view, ViewVersion active, TimePoint now) const;

 private:
  // By which view it lost its last slots.
  struct Loss {
    ViewVersion view;
    TimePoint at;
  };
  bool Stops(const NodeInfo& node) const;
  bool IsOut(const NodeInfo& node) const { return IsSet(node.id) || Stops(node); }
  // Those that are to own slots.
  std::vector<const NodeInfo*> Choose(std::span<const NodeInfo> nodes) const;
  std::set<NodeId> OutOf(std::span<const NodeInfo> nodes) const;
  size_t PulledBy(NodeId id, const DhtView& view, ViewVersion lost_by) const;
  bool Leads(NodeId to, NodeId id) const;

  const Options options_;
  std::set<NodeId> wanted_;
  std::map<NodeId, Word> words_;
  std::set<NodeId> stopping_;  // whose last word says so
  std::map<NodeId, Loss> losses_;
  std::set<NodeId> published_;  // nodes of the newest view that were given no slots
  std::optional<TimePoint> changed_at_;
};

}  // namespace ems::controller
