#pragma once
// The namespaces of the cluster. Pure: Plan* checks a change and says what would be written; Apply
// takes it over once the store has it. Invariant: an id is given out once, for ever; the table's
// version grows with each change. Bound: kNamespacesMax namespaces.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/view_cache.h"
#include "common/status.h"

namespace ems::controller {

// One change of the table, and the counters after it.
struct NamespaceChange {
  NamespaceInfo info;
  bool deleted = false;
  uint64_t version = 0;
  uint32_t next_id = 1;
};

inline constexpr uint32_t kNumbersSkipped = 1 << 20;

// Errors: kInvalidArgument  not 1–128 of [A-Za-z0-9._-]
Status CheckNamespaceName(std::string_view name);
// Errors: kInvalidArgument  more reserved than the quota allows, a number above 2^62
Status CheckNamespacePolicy(const NamespaceInfo& info);

// Threading: one thread (the controller's loop).
class NamespaceRegistry final {
 public:
  NamespaceRegistry() = default;
  NamespaceRegistry(std::vector<NamespaceInfo> stored, uint64_t version, uint32_t next_id);

  // Name and policy of `wanted` count; the change has id and generation.
  // Errors: kInvalidArgument    kAlreadyExists    kResourceExhausted  kNamespacesMax reached, or no
  // id left
  Result<NamespaceChange> PlanCreate(NamespaceInfo wanted) const;
  // Errors: kInvalidArgument    kNotFound
  Result<NamespaceChange> PlanUpdate(NamespaceInfo wanted) const;
  // Errors: kNotFound
  Result<NamespaceChange> PlanDelete(const std::string& name) const;
  // Goes on with ids and versions that another copy of the store has not given away, unless
  // kNumbersSkipped were since: watchers take the table, and no id is used twice.
  NamespaceChange PlanSkip() const;
  void Apply(const NamespaceChange& change);

  // Errors: kNotFound
  Result<NamespaceInfo> Get(const std::string& name) const;
  // An immutable copy. Cost: O(namespaces).
  std::shared_ptr<const NamespaceTable> Snapshot() const;
  size_t size() const { return by_name_.size(); }

 private:
  Status Missing(const std::string& name) const;

  std::map<std::string, NamespaceInfo> by_name_;
  uint64_t version_ = 0;
  uint32_t next_id_ = 1;
};

}  // namespace ems::controller
