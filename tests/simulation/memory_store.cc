#include "tests/simulation/memory_store.h"

#include <algorithm>

#include "common/check.h"

namespace ems::simulation {

using controller::StoredState;

Result<StoredState> MemoryStore::Load() {
  if (failed_.has_value() && hooks_.found()) state_ = *failed_;
  failed_.reset();
  return state_;
}

// The next one that succeeds takes back what failed before it, as rows in RocksDB do.
Status MemoryStore::Write(const std::function<void(StoredState*)>& change) {
  if (hooks_.fails()) {
    failed_ = state_;
    change(&*failed_);
    return Error(StatusCode::kUnavailable, "disk full");
  }
  failed_.reset();
  change(&state_);
  return OkStatus();
}

Status MemoryStore::PutCluster(ClusterId cluster) {
  return Write([&](StoredState* state) { state->cluster = cluster; });
}

Status MemoryStore::PutTerm(uint64_t term) {
  return Write([&](StoredState* state) { state->term = term; });
}

Status MemoryStore::PutTimes(const controller::GivenTimes& given) {
  return Write([&](StoredState* state) { state->given = given; });
}

Status MemoryStore::PutView(const std::shared_ptr<const DhtView>& view,
                            const controller::ViewWindow& window) {
  return Write([&](StoredState* state) {
    auto& views = state->views;
    std::erase_if(views, [&](const auto& kept) {
      return std::find(window.open.begin(), window.open.end(), kept->version()) ==
             window.open.end();
    });
    state->active = window.active;
    if (views.size() >= controller::kViewsKept) {
      EMS_CHECK(!keeps_open_views_, "{} open views", views.size());
      views.erase(views.begin());
    }
    views.push_back(view);
    state->epoch = view->version().epoch();
  });
}

Status MemoryStore::PutWindow(const controller::ViewWindow& window) {
  return Write([&](StoredState* state) {
    std::erase_if(state->views, [&](const auto& kept) {
      return std::find(window.open.begin(), window.open.end(), kept->version()) ==
             window.open.end();
    });
    state->active = window.active;
  });
}

Status MemoryStore::PutNode(const controller::StoredNode& node, uint32_t next_node_id) {
  return Write([&](StoredState* state) {
    std::erase_if(state->nodes, [&](const auto& known) { return known.id == node.id; });
    state->nodes.push_back(node);
    state->next_node_id = next_node_id;
  });
}

Status MemoryStore::DeleteNode(const std::string& name) {
  return Write([&](StoredState* state) {
    std::erase_if(state->nodes, [&](const auto& known) { return known.name == name; });
  });
}

Status MemoryStore::PutNamespace(const controller::NamespaceChange& change) {
  return Write([&](StoredState* state) {
    state->namespaces_version = change.version;
    state->next_namespace_id = change.next_id;
  });
}

}  // namespace ems::simulation
