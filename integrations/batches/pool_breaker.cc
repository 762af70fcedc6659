#include "integrations/batches/pool_breaker.h"

#include <algorithm>
#include <set>

#include "cluster/slot_table.h"
#include "common/check.h"

namespace ems::batches {
namespace {

constexpr size_t kOwnersToOpen = 4;

bool IsOutage(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kAborted ||
         status.code() == StatusCode::kDeadlineExceeded;
}

}  // namespace

bool PoolBreaker::Judge(std::span<const Status> blocks, std::span<const std::string> routes) {
  if (!std::all_of(blocks.begin(), blocks.end(), IsOutage)) {
    OnAnswer();
    return false;
  }
  // Some servers' blocks: the client's breakers are enough.
  if (SpeaksForAll(routes)) breaker_.OnFailure(clock_.Now());
  return true;
}

bool PoolBreaker::SpeaksForAll(std::span<const std::string> routes) const {
  const auto view = views_->view();
  EMS_CHECK(view != nullptr, "a batch went out without a view");
  const NamespaceId ns = name_space_();
  const size_t needed = std::min(view->nodes().size(), kOwnersToOpen);
  std::set<NodeId> owners;
  for (size_t i = 0; i < routes.size() && owners.size() < needed; ++i) {
    owners.insert(view->OwnerId(SlotOf(ns, routes[i])));
  }
  return owners.size() >= needed;
}

}  // namespace ems::batches
