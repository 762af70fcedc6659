#include "mp_controller/namespace_registry.h"

#include <algorithm>
#include <utility>

#include "cluster/namespace_codec.h"
#include "common/bytes.h"
#include "common/random_id.h"

namespace ems::controller {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr uint64_t kQuotaMax = uint64_t{1} << 62;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

Status CheckTier(std::string_view tier, uint64_t quota, uint64_t reserved) {
  if (quota > kQuotaMax || reserved > kQuotaMax) {
    return Error(StatusCode::kInvalidArgument, "{} quota {} B, reserved {} B: at most {} B", tier,
                 quota, reserved, kQuotaMax);
  }
  if (quota != 0 && reserved > quota) {
    return Error(StatusCode::kInvalidArgument, "{} reserved {} B is more than the quota {} B", tier,
                 reserved, quota);
  }
  return OkStatus();
}

}  // namespace

Status CheckNamespaceName(std::string_view name) {
  if (!name.empty() && name.size() <= kNameBytesMax &&
      std::all_of(name.begin(), name.end(), IsNameChar)) {
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "namespace name \"{}\" ({} B): 1 to {} of A-Z a-z 0-9 . _ - are allowed",
               Printable(name), name.size(), kNameBytesMax);
}

Status CheckNamespacePolicy(const NamespaceInfo& info) {
  EMS_RETURN_IF_ERROR(CheckTier("DRAM", info.dram_quota_bytes, info.dram_reserved_bytes));
  if (info.replicas < 1 || info.replicas > SlotCopies::kMost + 1) {
    return Error(StatusCode::kInvalidArgument, "replicas {}: an object is on 1 to {} servers",
                 info.replicas, SlotCopies::kMost + 1);
  }
  if (info.replicas > 1 && !info.immutable) {
    return Error(
        StatusCode::kInvalidArgument,
        "replicas {}: only immutable namespaces have copies, where a key has one value for "
        "ever; make another namespace with --immutable",
        info.replicas);
  }
  return CheckTier("SSD", info.ssd_quota_bytes, info.ssd_reserved_bytes);
}

NamespaceRegistry::NamespaceRegistry(std::vector<NamespaceInfo> stored, uint64_t version,
                                     uint32_t next_id)
    : version_(version), next_id_(std::max(next_id, 1u)) {
  for (NamespaceInfo& info : stored) {
    next_id_ = std::max(next_id_, info.ref.id.value() + 1);
    by_name_.emplace(info.name, std::move(info));
  }
  Remember();
}

void NamespaceRegistry::Remember() {
  made_[version_] = Snapshot()->Fingerprint();
  if (made_.size() > kTablesRemembered) made_.erase(made_.begin());
}

bool NamespaceRegistry::Knows(uint64_t version, uint64_t fingerprint) const {
  if (version < made_.begin()->first) return true;  // nothing is remembered of it
  const auto made = made_.find(version);
  return made != made_.end() && (fingerprint == 0 || fingerprint == made->second);
}

Status NamespaceRegistry::Missing(const std::string& name) const {
  return Error(StatusCode::kNotFound, "no namespace \"{}\"", Printable(name));
}

Result<NamespaceChange> NamespaceRegistry::PlanCreate(NamespaceInfo wanted) const {
  EMS_RETURN_IF_ERROR(CheckNamespaceName(wanted.name));
  EMS_RETURN_IF_ERROR(CheckNamespacePolicy(wanted));
  if (by_name_.contains(wanted.name)) {
    return Error(StatusCode::kAlreadyExists, "namespace \"{}\" exists", wanted.name);
  }
  if (by_name_.size() >= static_cast<size_t>(kNamespacesMax) || next_id_ == UINT32_MAX) {
    return Error(StatusCode::kResourceExhausted, "{} namespaces exist, at most {} are allowed",
                 by_name_.size(), kNamespacesMax);
  }
  wanted.ref = {NamespaceId(next_id_), static_cast<uint32_t>(RandomId())};
  if (wanted.durability == Durability::kDefault) wanted.durability = Durability::kDram;
  return NamespaceChange{
      .info = std::move(wanted), .version = version_ + 1, .next_id = next_id_ + 1};
}

Result<NamespaceChange> NamespaceRegistry::PlanUpdate(NamespaceInfo wanted) const {
  EMS_RETURN_IF_ERROR(CheckNamespacePolicy(wanted));
  const auto it = by_name_.find(wanted.name);
  if (it == by_name_.end()) return Missing(wanted.name);
  if (wanted.immutable != it->second.immutable) {
    return Error(StatusCode::kInvalidArgument,
                 "namespace \"{}\" is {}: that is fixed when it is made", wanted.name,
                 it->second.immutable ? "immutable" : "not immutable");
  }
  wanted.ref = it->second.ref;
  if (wanted.durability == Durability::kDefault) wanted.durability = Durability::kDram;
  return NamespaceChange{.info = std::move(wanted), .version = version_ + 1, .next_id = next_id_};
}

Result<NamespaceChange> NamespaceRegistry::PlanDelete(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return Missing(name);
  return NamespaceChange{
      .info = it->second, .deleted = true, .version = version_ + 1, .next_id = next_id_};
}

NamespaceChange NamespaceRegistry::PlanSkip() const {
  NamespaceChange change;
  change.info.ref.id = NamespaceId(next_id_);  // there is none
  change.deleted = true;
  change.version = version_ + kNumbersSkipped;
  change.next_id =
      next_id_ > UINT32_MAX - kNumbersSkipped ? UINT32_MAX : next_id_ + kNumbersSkipped;
  return change;
}

void NamespaceRegistry::Apply(const NamespaceChange& change) {
  if (change.deleted) {
    by_name_.erase(change.info.name);
  } else {
    by_name_[change.info.name] = change.info;
  }
  // Of numbers that were skipped an operator has accepted that another copy made some.
  if (change.version != version_ + 1) made_.clear();
  version_ = change.version;
  next_id_ = change.next_id;
  Remember();
}

Result<NamespaceInfo> NamespaceRegistry::Get(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return Missing(name);
  return it->second;
}

uint32_t NamespaceRegistry::copies_max() const {
  uint32_t replicas = 1;
  for (const auto& [name, info] : by_name_) replicas = std::max(replicas, info.replicas);
  return replicas - 1;
}

std::shared_ptr<const NamespaceTable> NamespaceRegistry::Snapshot() const {
  auto table = std::make_shared<NamespaceTable>();
  table->version = version_;
  for (const auto& [name, info] : by_name_) table->by_id.emplace(info.ref.id, info);
  return table;
}

}  // namespace ems::controller
