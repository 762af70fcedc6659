#include "tests/simulation/memory_store.h"

#include <algorithm>

#include "common/check.h"

namespace ems::simulation {

Status MemoryStore::PutCluster(ClusterId cluster) {
  state_.cluster = cluster;
  return OkStatus();
}

Status MemoryStore::PutTerm(uint64_t term) {
  state_.term = term;
  return OkStatus();
}

Status MemoryStore::PutTimes(const controller::GivenTimes& given) {
  state_.given = given;
  return OkStatus();
}

Status MemoryStore::PutView(const std::shared_ptr<const DhtView>& view,
                            const controller::ViewWindow& window) {
  auto& views = state_.views;
  std::erase_if(views, [&](const auto& kept) {
    return std::find(window.open.begin(), window.open.end(), kept->version()) == window.open.end();
  });
  state_.active = window.active;
  if (views.size() >= controller::kViewsKept) {
    EMS_CHECK(!keeps_open_views_, "{} open views", views.size());
    views.erase(views.begin());
  }
  views.push_back(view);
  state_.epoch = view->version().epoch();
  return OkStatus();
}

Status MemoryStore::PutNode(const controller::StoredNode& node, uint32_t next_node_id) {
  std::erase_if(state_.nodes, [&](const auto& known) { return known.id == node.id; });
  state_.nodes.push_back(node);
  state_.next_node_id = next_node_id;
  return OkStatus();
}

Status MemoryStore::DeleteNode(const std::string& name) {
  std::erase_if(state_.nodes, [&](const auto& known) { return known.name == name; });
  return OkStatus();
}

Status MemoryStore::PutNamespace(const controller::NamespaceChange& change) {
  state_.namespaces_version = change.version;
  state_.next_namespace_id = change.next_id;
  return OkStatus();
}

}  // namespace ems::simulation
