#include "mp_controller/durable_namespaces.h"

#include <utility>

#include "cluster/namespace_codec.h"
#include "common/logging.h"
#include "mp_controller/request_check.h"
#include "proto/controller.pb.h"

namespace ems::controller {

Status DurableNamespaces::Write(const NamespaceChange& change) {
  const Status written = parts_.store->PutNamespace(change);
  if (!written.ok()) {
    parts_.metrics->store_errors.Add();
    return written;
  }
  registry_.Apply(change);
  Publish();
  return OkStatus();
}

Status DurableNamespaces::Commit(const NamespaceChange& change) {
  EMS_RETURN_IF_ERROR(parts_.store_age->CheckMayGoOn());  // its id may be in use
  const bool existed = registry_.Get(change.info.name).ok();
  EMS_RETURN_IF_ERROR(Write(change));
  const std::string_view kind = change.deleted ? kNamespaceDeleted
                                : existed      ? kNamespaceChanged
                                               : kNamespaceCreated;
  const std::string_view verb = change.deleted ? "deleted" : existed ? "changed" : "created";
  AddEvent(
      parts_.events,
      {kind, {}, change.info.name, fmt::format("namespace {} was {}", change.info.name, verb)});
  EMS_LOG(kInfo, "mp_controller", "namespace {} name={} id={} generation={}",
          change.deleted ? "deleted" : "stored", change.info.name, change.info.ref.id.value(),
          change.info.ref.generation);
  return OkStatus();
}

Status DurableNamespaces::Skip() { return Write(registry_.PlanSkip()); }

Status DurableNamespaces::CreateNamed(const std::string& name) {
  NamespaceInfo wanted;
  wanted.name = name;
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, registry_.PlanCreate(std::move(wanted)));
  return Commit(change);
}

Status DurableNamespaces::Create(const v1::CreateNamespaceRequest& request, v1::Namespace* reply) {
  EMS_ASSIGN_OR_RETURN(NamespaceInfo wanted, CheckNamespace(request.name(), request.policy()));
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, registry_.PlanCreate(std::move(wanted)));
  EMS_RETURN_IF_ERROR(Commit(change));
  ems::ToProto(change.info, reply);
  return OkStatus();
}

Status DurableNamespaces::Get(const v1::GetNamespaceRequest& request, v1::Namespace* reply) const {
  EMS_ASSIGN_OR_RETURN(const NamespaceInfo info, registry_.Get(request.name()));
  ems::ToProto(info, reply);
  return OkStatus();
}

Status DurableNamespaces::List(const v1::ListNamespacesRequest&,
                               v1::ListNamespacesReply* reply) const {
  const auto table = registry_.Snapshot();
  for (const auto& [id, info] : table->by_id) ems::ToProto(info, reply->add_namespaces());
  return OkStatus();
}

Status DurableNamespaces::Update(const v1::UpdateNamespaceRequest& request, v1::Namespace* reply) {
  EMS_ASSIGN_OR_RETURN(NamespaceInfo wanted, CheckNamespace(request.name(), request.policy()));
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, registry_.PlanUpdate(std::move(wanted)));
  EMS_RETURN_IF_ERROR(Commit(change));
  ems::ToProto(change.info, reply);
  return OkStatus();
}

Status DurableNamespaces::Delete(const v1::DeleteNamespaceRequest& request,
                                 v1::DeleteNamespaceReply*) {
  EMS_ASSIGN_OR_RETURN(const NamespaceChange change, registry_.PlanDelete(request.name()));
  return Commit(change);
}

}  // namespace ems::controller
