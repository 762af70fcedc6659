#pragma once
// The policy that chooses a decode group for a request (XDS §4.3): groups at their batch limit are
// out, and of the others the one with the lowest KV usage is chosen, counting room reserved for
// outputs still to come. Closed groups, which are down or refuse, are out as well.
//
// Invariant: no group is given more requests than the batch limit, nor more KV, reserve included,
// than its capacity; nor a request that could outgrow the capacity if it were alone there. Bound:
// groups · batch_max requests. Pure bookkeeping: no clock, no I/O; the same calls give the same
// answers. Threading: caller locks.
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "pdc/scheduling/request.h"

namespace ems::pdc {

struct DecodeBalancerOptions {
  int groups = 1;
  uint64_t batch_max = 64;           // requests a group
  uint64_t kv_tokens_max = 1 << 20;  // KV of a group, tokens
  uint64_t reserve_tokens = 1024;    // for an output whose length is not known
};

class DecodeBalancer final {
 public:
  // Aborts when an option is below 1 (reserve_tokens may be 0).
  explicit DecodeBalancer(DecodeBalancerOptions options);

  // The group that `request` joins, with its room charged to it; none when no open group has a
  // place and the KV for it: the caller holds the hand-off back and asks again after a Remove. Ties
  // go to fewer requests, then to the lower group. Aborts on an id that is placed already. Cost:
  // O(groups).
  std::optional<int> Place(const Request& request);
  // The output grew beyond what was reserved, or ended up shorter: `kv_tokens` is now charged.
  // False: no such request. A long output may take a group above its capacity; nothing joins it
  // then. Cost: O(1).
  bool Charge(uint64_t id, uint64_t kv_tokens);
  // The request left. False: no such request. Cost: O(1).
  bool Remove(uint64_t id);

  // A closed group takes nothing; what is there stays, and stays charged. All begin open.
  void SetOpen(int group, bool open) { At(group).open = open; }
  bool open(int group) const { return At(group).open; }
  // In tokens, instead of the options' kv_tokens_max. What is there stays, above it, too.
  void SetCapacity(int group, uint64_t kv_tokens) { At(group).kv_tokens_max = kv_tokens; }

  // True when Place could never succeed, whatever leaves and whichever groups open. Cost:
  // O(groups).
  bool NeverFits(const Request& request) const;
  uint64_t requests(int group) const { return At(group).requests; }
  uint64_t kv_tokens(int group) const { return At(group).kv_tokens; }
  size_t placed() const { return placed_.size(); }

 private:
  struct Group {
    uint64_t requests = 0, kv_tokens = 0, kv_tokens_max = 0;
    bool open = true;
  };
  struct Placed {
    int group = 0;
    uint64_t kv_tokens = 0;
  };
  Group& At(int group) { return groups_[static_cast<size_t>(group)]; }
  const Group& At(int group) const { return groups_[static_cast<size_t>(group)]; }
  // What is charged at first, and what it may come to.
  uint64_t Need(const Request& request) const;
  uint64_t NeedMax(const Request& request) const;
  const DecodeBalancerOptions options_;
  std::vector<Group> groups_;
  std::unordered_map<uint64_t, Placed> placed_;
};

}  // namespace ems::pdc
