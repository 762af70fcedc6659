#include "integrations/python/src/pool_breaker.h"

#include <algorithm>
#include <set>

#include "mp_controller/view/slot_table.h"

namespace ems::python {
namespace {

constexpr int kFailuresToOpen = 2;
constexpr size_t kOwnersToOpen = 4;
constexpr Duration kOpenFor = std::chrono::seconds(1);

}  // namespace

bool PoolBreaker::Allow() {
  auto state = state_.Lock();
  if (state->failures < kFailuresToOpen) return true;
  const TimePoint now = Clock::System().Now();
  if (now < state->closed_until) return false;
  state->closed_until = now + kOpenFor;  // this one is to see whether the pool is back
  return true;
}

void PoolBreaker::OnAnswer() {
  auto state = state_.Lock();
  state->failures = 0;
}

void PoolBreaker::OnOutage(std::span<const std::string> routes) {
  if (!SpeaksForAll(routes)) return;  // some servers' blocks: the client's breakers are enough
  auto state = state_.Lock();
  if (++state->failures < kFailuresToOpen) return;
  state->failures = kFailuresToOpen;
  state->closed_until = Clock::System().Now() + kOpenFor;
}

bool PoolBreaker::SpeaksForAll(std::span<const std::string> routes) const {
  const auto view = client_->views().view();
  const NamespaceId ns = client_->name_space().ref.id;
  const size_t needed = std::min(view->nodes().size(), kOwnersToOpen);
  std::set<NodeId> owners;
  for (size_t i = 0; i < routes.size() && owners.size() < needed; ++i) {
    owners.insert(view->OwnerId(SlotOf(ns, routes[i])));
  }
  return owners.size() >= needed;
}

}  // namespace ems::python
