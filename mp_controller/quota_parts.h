#pragma once
// Moves parts of namespaces' DRAM quotas between servers, so that all servers evict at the same
// age, as one LRU of the whole quota would. At first each server holds as much of a quota as of the
// slots; but keys and how often they are asked for are not spread evenly, so some servers evict
// what others would keep, and a request whose blocks lie on several servers hits up to the first
// that is gone.
//
// A round moves little, from servers whose coldest object is older than the mean to full ones whose
// is younger. It begins when each server has reported since the last round and holds what that gave
// it. Servers that get more are told when those that give hold less: however heartbeats are lost or
// delayed, a quota is never exceeded. A server that reports no parts (an older one) holds what its
// slots give it, and what it reports by another view counts for nothing.
//
// Invariant: the parts of the servers that report sum up to at most what their slots give them.
// Bound: kQuotaPartsMax parts a heartbeat; a row for each namespace with a quota and server.
// Nothing is stored: after a restart rounds go on from what servers report.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "cluster/dht_view.h"
#include "cluster/node_usage.h"
#include "cluster/quota_part.h"
#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/ids.h"
#include "mp_controller/namespace_registry.h"

namespace ems::controller {

// One server's part of one quota, and what it may be.
struct HeldPart {
  uint64_t part_bytes = 0;
  uint64_t used_bytes = 0;
  Duration coldest_age{};  // zero: it has no object
  uint64_t least_bytes = 0, most_bytes = 0;
};

// The parts after one round, `since_last` after the one before, in the order of `servers`. Their
// sum is at most `quota_bytes`, where the sum before was. None changes by more than 1 in 32, grows
// while it is not full or above its most, or shrinks below its least; one that is there already
// stays, or gives what is above its most as others take it. Pure. Cost: O(servers).
std::vector<uint64_t> NextParts(uint64_t quota_bytes, Duration since_last,
                                std::span<const HeldPart> servers);

// Threading: one thread (the controller's loop).
class QuotaParts final {
 public:
  // Takes what server `id` has said in a heartbeat, and returns what it is to hold that it does not
  // yet. `view` and `namespaces` are the newest. Cost: O(servers) for each part; O(slots × servers)
  // for the first heartbeat after a new view, O(namespaces) after a new table.
  std::vector<QuotaPart> OnHeartbeat(NodeId id, ViewVersion installed, const NodeUsage& usage,
                                     const DhtView& view, const NamespaceRegistry& namespaces,
                                     TimePoint now);

 private:
  struct Member {
    QuotaPart said;
    uint64_t told_bytes = 0;
    uint64_t dram_bytes = 0;
    bool fresh = false;  // has reported since the last round
  };
  struct Round {
    uint64_t quota_bytes = 0;
    std::optional<TimePoint> begun_at;  // until then servers hold what they held before
    std::map<NodeId, Member> members;
  };
  void StartOver(const DhtView& view);
  void TakeTable(const NamespaceRegistry& namespaces);
  // The namespace of that very part; null: there is none.
  const NamespaceInfo* Find(const QuotaPart& said) const;
  double ShareOf(NodeId id) const;
  // Nobody holds more than it was told, also of what is pinned.
  static bool AllHaveGiven(const Round& round);
  void BeginRound(const NamespaceInfo& info, TimePoint now, Round* round) const;

  ViewVersion view_;                             // that the rest belongs to
  std::shared_ptr<const NamespaceTable> table_;  // null: none yet
  std::map<NodeId, uint32_t> slots_;             // of those that own any
  std::set<NodeId> heard_;                       // of them
  std::map<NamespaceRef, Round> rounds_;
};

}  // namespace ems::controller
