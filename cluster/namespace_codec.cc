#include "cluster/namespace_codec.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "proto/controller.pb.h"

namespace ems {

void ToProto(const NamespaceInfo& info, v1::NamespacePolicy* out) {
  out->set_dram_quota_bytes(info.dram_quota_bytes);
  out->set_dram_reserved_bytes(info.dram_reserved_bytes);
  out->set_ssd_quota_bytes(info.ssd_quota_bytes);
  out->set_ssd_reserved_bytes(info.ssd_reserved_bytes);
  out->set_durability(static_cast<v1::Durability>(info.durability));
  out->set_checksum(static_cast<v1::ChecksumPolicy>(info.checksum));
  out->set_ssd_sync_relaxed(info.relaxed_sync);
  out->set_immutable(info.immutable);
  if (info.replicas > 1) out->set_replicas(info.replicas);
}

void ToProto(const NamespaceInfo& info, v1::Namespace* out) {
  out->set_id(info.ref.id.value());
  out->set_generation(info.ref.generation);
  out->set_name(info.name);
  ToProto(info, out->mutable_policy());
}

void ToProto(const NamespaceTable& table, v1::NamespaceTable* out) {
  out->set_version(table.version);
  for (const auto& [id, info] : table.by_id) ToProto(info, out->add_namespaces());
}

Status FromProto(const v1::NamespacePolicy& in, NamespaceInfo* out) {
  if (!v1::Durability_IsValid(in.durability())) {
    return Error(StatusCode::kInvalidArgument, "unknown durability {}",
                 static_cast<int>(in.durability()));
  }
  if (!v1::ChecksumPolicy_IsValid(in.checksum())) {
    return Error(StatusCode::kInvalidArgument, "unknown checksum policy {}",
                 static_cast<int>(in.checksum()));
  }
  out->dram_quota_bytes = in.dram_quota_bytes();
  out->dram_reserved_bytes = in.dram_reserved_bytes();
  out->ssd_quota_bytes = in.ssd_quota_bytes();
  out->ssd_reserved_bytes = in.ssd_reserved_bytes();
  out->durability = static_cast<Durability>(in.durability());
  out->checksum = static_cast<ChecksumPolicy>(in.checksum());
  out->relaxed_sync = in.ssd_sync_relaxed();
  out->immutable = in.immutable();
  out->replicas = std::max<uint32_t>(in.replicas(), 1);
  return OkStatus();
}

Result<NamespaceInfo> FromProto(const v1::Namespace& in) {
  NamespaceInfo info;
  info.ref = {NamespaceId(in.id()), in.generation()};
  info.name = in.name();
  EMS_RETURN_IF_ERROR(Prefixed(FromProto(in.policy(), &info),
                               fmt::format("namespace \"{}\"", Printable(info.name))));
  return info;
}

Result<std::shared_ptr<const NamespaceTable>> FromProto(const v1::NamespaceTable& in) {
  if (in.namespaces_size() > kNamespacesMax) {
    return Error(StatusCode::kInvalidArgument, "{} namespaces: at most {} are allowed",
                 in.namespaces_size(), kNamespacesMax);
  }
  auto table = std::make_shared<NamespaceTable>();
  table->version = in.version();
  std::set<std::string> names;
  for (const v1::Namespace& ns : in.namespaces()) {
    EMS_ASSIGN_OR_RETURN(NamespaceInfo info, FromProto(ns));
    const NamespaceId id = info.ref.id;
    if (id.value() == 0 || !names.insert(info.name).second ||
        !table->by_id.emplace(id, std::move(info)).second) {
      return Error(StatusCode::kInvalidArgument, "namespace id {} is zero or given twice",
                   id.value());
    }
  }
  return std::shared_ptr<const NamespaceTable>(std::move(table));
}

}  // namespace ems
