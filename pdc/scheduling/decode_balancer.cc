#include "pdc/scheduling/decode_balancer.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"

namespace ems::pdc {

DecodeBalancer::DecodeBalancer(DecodeBalancerOptions options) : options_(options) {
  EMS_CHECK(options.groups >= 1 && options.batch_max >= 1 && options.kv_tokens_max >= 1,
            "{} groups of {} requests and {} tokens", options.groups, options.batch_max,
            options.kv_tokens_max);
  groups_.resize(static_cast<size_t>(options.groups), {.kv_tokens_max = options.kv_tokens_max});
}

uint64_t DecodeBalancer::Need(const Request& request) const {
  return request.input_tokens +
         (request.output_tokens > 0 ? request.output_tokens : options_.reserve_tokens);
}

uint64_t DecodeBalancer::NeedMax(const Request& request) const {
  return std::max(Need(request), request.input_tokens + request.output_tokens_max);
}

bool DecodeBalancer::NeverFits(const Request& request) const {
  return std::all_of(groups_.begin(), groups_.end(), [this, &request](const Group& group) {
    return NeedMax(request) > group.kv_tokens_max;
  });
}

std::optional<int> DecodeBalancer::Place(const Request& request) {
  EMS_CHECK(!placed_.contains(request.id), "request {} is placed already", request.id);
  const uint64_t need = Need(request);
  std::optional<size_t> best;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (!group.open || group.requests >= options_.batch_max ||
        group.kv_tokens + need > group.kv_tokens_max || NeedMax(request) > group.kv_tokens_max)
      continue;
    if (!best || std::tie(group.kv_tokens, group.requests) <
                     std::tie(groups_[*best].kv_tokens, groups_[*best].requests))
      best = i;
  }
  if (!best) return std::nullopt;
  groups_[*best].requests += 1;
  groups_[*best].kv_tokens += need;
  placed_[request.id] = {static_cast<int>(*best), need};
  return static_cast<int>(*best);
}

bool DecodeBalancer::Charge(uint64_t id, uint64_t kv_tokens) {
  const auto it = placed_.find(id);
  if (it == placed_.end()) return false;
  Group& group = groups_[static_cast<size_t>(it->second.group)];
  group.kv_tokens += kv_tokens - it->second.kv_tokens;  // wraps back where it shrinks
  it->second.kv_tokens = kv_tokens;
  return true;
}

bool DecodeBalancer::Remove(uint64_t id) {
  const auto it = placed_.find(id);
  if (it == placed_.end()) return false;
  Group& group = groups_[static_cast<size_t>(it->second.group)];
  EMS_CHECK(group.requests > 0 && group.kv_tokens >= it->second.kv_tokens,
            "group {} has {} requests and {} tokens, {} of them leave", it->second.group,
            group.requests, group.kv_tokens, it->second.kv_tokens);
  group.requests -= 1;
  group.kv_tokens -= it->second.kv_tokens;
  placed_.erase(it);
  return true;
}

}  // namespace ems::pdc
