#pragma once
// One queue of prompts shared by all data-parallel groups of a prefill instance, and the leader's
// assignment of prompts to groups for the next step (XDS §4.3). All groups meet at every expert
// layer, so a step lasts as long as its slowest group: the leader evens out the modelled cost,
// which knows the length and the prefix hit of a prompt.
//
// Invariant: a request leaves the queue in exactly one assignment; the oldest request is always in
// the next one, so none starves. Bound: queue_max requests.
// Pure: no clock, no I/O; the same calls give the same answers.
// Threading: caller locks.
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "common/status.h"
#include "pdc/scheduling/request.h"

namespace ems::pdc {

struct PrefillSchedulerOptions {
  int groups = 1;
  // Tokens to compute in a step and group; one longer prompt goes alone.
  uint64_t new_tokens_max = 16'384;
  // Tokens, cached ones included, whose KV a group holds during a step.
  uint64_t context_tokens_max = 262'144;
  size_t queue_max = 1 << 20;
};

// Modelled time of a request in a step. Any unit, at least 0, the same for equal requests.
using PrefillCostFunction = std::function<double(const Request&)>;

class PrefillScheduler final {
 public:
  // Aborts when an option is below 1 or there is no function.
  PrefillScheduler(PrefillSchedulerOptions options, PrefillCostFunction cost);

  // Errors: kResourceExhausted  the queue is full   kInvalidArgument  nothing to compute
  Status Enqueue(const Request& request);

  // The next step: [groups] lists of requests, all empty when nothing waits.
  // Requests are taken in their order as long as the groups' budgets may hold them, and then dealt
  // out, the costliest first, each to the group with the least cost so far that has room for it;
  // what finds no room goes back to the front of the queue.
  // Cost: O(n log n + n · groups), n requests of the step.
  std::vector<std::vector<Request>> NextStep();

  // Takes a waiting request out. False: it does not wait here. Cost: O(queued).
  bool Cancel(uint64_t id);

  size_t queued() const { return queue_.size(); }
  // Sum of the modelled costs of what waits: what a router compares between instances.
  double queued_cost() const { return queue_.empty() ? 0 : queued_cost_; }

 private:
  struct Waiting {
    Request request;
    double cost = 0;
    uint64_t order = 0;
  };
  struct Group {
    double cost = 0;
    uint64_t new_tokens = 0, context_tokens = 0;
    std::vector<Request> requests;
  };
  std::vector<Waiting> TakeWindow();
  Group* GroupFor(const Waiting& waiting, std::vector<Group>* groups) const;
  bool HasRoom(const Group& group, const Request& request) const;

  const PrefillSchedulerOptions options_;
  const PrefillCostFunction cost_;
  std::deque<Waiting> queue_;
  double queued_cost_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace ems::pdc
