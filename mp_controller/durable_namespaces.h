#pragma once
// The namespaces of the cluster as clients change them: checked (namespace_registry.h), made
// durable, taken over and published, in this order.
#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "mp_controller/cluster_store.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/namespace_registry.h"
#include "mp_controller/publish/view_publisher.h"
#include "mp_controller/store_age.h"

namespace ems::v1 {
class CreateNamespaceRequest;
class DeleteNamespaceRequest;
class DeleteNamespaceReply;
class GetNamespaceRequest;
class ListNamespacesRequest;
class ListNamespacesReply;
class UpdateNamespaceRequest;
class Namespace;
}  // namespace ems::v1

namespace ems::controller {

// All pointers must outlive the object. Threading: one thread (the controller's loop).
class DurableNamespaces final {
 public:
  struct Parts {
    ClusterStore* store;
    ViewPublisher* publisher;
    ControllerMetrics* metrics;
    const StoreAge* store_age;
    ClusterEvents* events = nullptr;  // null: nobody is told
  };
  explicit DurableNamespaces(const Parts& parts) : parts_(parts) {}

  // What the store has; nothing is published.
  void Restore(NamespaceRegistry stored) { registry_ = std::move(stored); }
  void Publish() const { parts_.publisher->Publish(registry_.Snapshot()); }
  const NamespaceRegistry& registry() const { return registry_; }

  // Errors of those that change something: of the registry, of the store, and of
  // StoreAge::CheckMayGoOn
  Status CreateNamed(const std::string& name);  // with the default policy
  Status Create(const v1::CreateNamespaceRequest& request, v1::Namespace* reply);
  Status Get(const v1::GetNamespaceRequest& request, v1::Namespace* reply) const;
  Status List(const v1::ListNamespacesRequest& request, v1::ListNamespacesReply* reply) const;
  Status Update(const v1::UpdateNamespaceRequest& request, v1::Namespace* reply);
  Status Delete(const v1::DeleteNamespaceRequest& request, v1::DeleteNamespaceReply* reply);
  // Goes on beyond the namespaces that a newer copy of the store may have given ids: a new one gets
  // no id of those. Errors: of the store
  Status Skip();

 private:
  Status Commit(const NamespaceChange& change);
  Status Write(const NamespaceChange& change);

  const Parts parts_;
  NamespaceRegistry registry_;
};

}  // namespace ems::controller
