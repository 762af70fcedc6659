#include "cluster/view_cache.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/hash.h"

namespace ems {

const NamespaceInfo* NamespaceTable::Find(std::string_view name) const {
  for (const auto& [id, info] : by_id) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

uint64_t NamespaceTable::Fingerprint() const {
  uint64_t hash = by_id.size();
  for (const auto& [id, info] : by_id) {
    const std::array<uint32_t, 2> ref = {id.value(), info.ref.generation};
    hash = Hash64(std::as_bytes(std::span(ref)), hash);
  }
  return std::max(hash, uint64_t{1});
}

ViewCache::View ViewCache::view() {
  auto state = state_.Lock();
  return state->view;
}

ViewCache::Namespaces ViewCache::namespaces() {
  auto state = state_.Lock();
  return state->namespaces;
}

ClusterId ViewCache::cluster() {
  auto state = state_.Lock();
  return state->cluster;
}

Status ViewCache::Join(ClusterId cluster) {
  auto state = state_.Lock();
  if (AreStrangers(state->cluster, cluster)) {
    return Error(StatusCode::kFailedPrecondition,
                 "cluster {} answers, but this process belongs to cluster {}: correct the "
                 "address, or start afresh (a server: with another data_dir)",
                 ClusterText(cluster), ClusterText(state->cluster));
  }
  if (cluster != kNoCluster) state->cluster = cluster;
  return OkStatus();
}

bool ViewCache::Install(View view) {
  if (view == nullptr || !Join(view->cluster()).ok()) return false;
  {
    auto state = state_.Lock();
    if (state->view != nullptr && view->version() <= state->view->version()) return false;
    state->view.swap(view);  // the old view is freed outside the lock
  }
  changed_.notify_all();
  return true;
}

bool ViewCache::Install(Namespaces namespaces) {
  if (namespaces == nullptr) return false;
  {
    auto state = state_.Lock();
    if (namespaces->version <= state->namespaces->version) return false;
    state->namespaces.swap(namespaces);
  }
  changed_.notify_all();
  return true;
}

ViewCache::View ViewCache::WaitForView(ViewVersion at_least, Deadline deadline) {
  auto state = state_.Lock();
  const bool found = state.WaitFor(changed_, deadline.Remaining(), [&](const State& s) {
    return s.view != nullptr && s.view->version() >= at_least;
  });
  return found ? state->view : nullptr;
}

}  // namespace ems
