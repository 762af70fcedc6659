#include "pdc/scheduling/prefill_scheduler.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::pdc {

PrefillScheduler::PrefillScheduler(PrefillSchedulerOptions options, PrefillCostFunction cost)
    : options_(options), cost_(std::move(cost)) {
  EMS_CHECK(options.groups >= 1 && options.new_tokens_max >= 1 && options.context_tokens_max >= 1 &&
                options.queue_max >= 1,
            "{} groups of {} new and {} context tokens, queue of {}", options.groups,
            options.new_tokens_max, options.context_tokens_max, options.queue_max);
  EMS_CHECK(cost_ != nullptr, "no cost function");
}

Status PrefillScheduler::Enqueue(const Request& request) {
  if (request.cached_tokens >= request.input_tokens) {
    return Error(StatusCode::kInvalidArgument,
                 "request {}: {} of {} tokens are cached; one at least has to be computed",
                 request.id, request.cached_tokens, request.input_tokens);
  }
  if (queue_.size() >= options_.queue_max) {
    return Error(StatusCode::kResourceExhausted, "request {}: {} prompts wait, no more may",
                 request.id, queue_.size());
  }
  const double cost = cost_(request);
  EMS_CHECK(cost >= 0, "request {} costs {}", request.id, cost);
  queue_.push_back({request, cost, next_order_++});
  queued_cost_ += cost;
  return OkStatus();
}

bool PrefillScheduler::HasRoom(const Group& group, const Request& request) const {
  if (group.requests.empty()) return true;  // however long: it goes alone
  return group.new_tokens + request.new_tokens() <= options_.new_tokens_max &&
         group.context_tokens + request.input_tokens <= options_.context_tokens_max;
}

// As many of the oldest as all groups together have tokens for.
std::vector<PrefillScheduler::Waiting> PrefillScheduler::TakeWindow() {
  const uint64_t groups = static_cast<uint64_t>(options_.groups);
  uint64_t new_tokens = 0, context_tokens = 0;
  std::vector<Waiting> window;
  while (!queue_.empty()) {
    const Request& request = queue_.front().request;
    new_tokens += std::min(request.new_tokens(), options_.new_tokens_max);
    context_tokens += std::min(request.input_tokens, options_.context_tokens_max);
    if (!window.empty() && (new_tokens > groups * options_.new_tokens_max ||
                            context_tokens > groups * options_.context_tokens_max))
      break;
    window.push_back(queue_.front());
    queue_.pop_front();
  }
  return window;
}

PrefillScheduler::Group* PrefillScheduler::GroupFor(const Waiting& waiting,
                                                    std::vector<Group>* groups) const {
  Group* best = nullptr;
  for (Group& group : *groups)
    if (HasRoom(group, waiting.request) && (best == nullptr || group.cost < best->cost))
      best = &group;
  return best;
}

std::vector<std::vector<Request>> PrefillScheduler::NextStep() {
  std::vector<std::vector<Request>> step(static_cast<size_t>(options_.groups));
  std::vector<Waiting> window = TakeWindow();
  if (window.empty()) return step;
  // The oldest is dealt first, so that it is in this step whatever its cost.
  std::sort(window.begin() + 1, window.end(), [](const Waiting& a, const Waiting& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.order < b.order;
  });
  std::vector<Group> groups(step.size());
  std::vector<Waiting> left;
  for (const Waiting& waiting : window) {
    Group* const group = GroupFor(waiting, &groups);
    if (group == nullptr) {
      left.push_back(waiting);
      continue;
    }
    group->cost += waiting.cost;
    group->new_tokens += waiting.request.new_tokens();
    group->context_tokens += waiting.request.input_tokens;
    group->requests.push_back(waiting.request);
    queued_cost_ -= waiting.cost;
  }
  std::sort(left.begin(), left.end(),
            [](const Waiting& a, const Waiting& b) { return a.order > b.order; });
  for (const Waiting& waiting : left) queue_.push_front(waiting);
  for (size_t i = 0; i < groups.size(); ++i) step[i] = std::move(groups[i].requests);
  return step;
}

bool PrefillScheduler::Cancel(uint64_t id) {
  const auto it = std::find_if(queue_.begin(), queue_.end(),
                               [id](const Waiting& w) { return w.request.id == id; });
  if (it == queue_.end()) return false;
  queued_cost_ -= it->cost;
  queue_.erase(it);
  return true;
}

}  // namespace ems::pdc
