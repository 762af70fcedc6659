#pragma once
// The namespaces of the cluster. Plan* checks a change and says what would be written; Apply takes
// it over once the store has it. Invariant: an id is given out once, for ever, and with a
// generation drawn at random: if an older copy of the store gives an id once more, the two
// namespaces differ all the same. The table's version grows with each change. Bound: kNamespacesMax
// namespaces, and the fingerprints of kTablesRemembered tables.
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
// Errors: kInvalidArgument  more reserved than the quota allows, a number above 2^62, replicas that
// are not 1 to 3, or above 1 where keys do not have one value for ever
Status CheckNamespacePolicy(const NamespaceInfo& info);

// Threading: one thread (the controller's loop).
class NamespaceRegistry final {
 public:
  static constexpr size_t kTablesRemembered = 4096;

  NamespaceRegistry() : NamespaceRegistry({}, 0, 1) {}
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

  // Whether a server can have this table from this store. False: the store is an older copy, and
  // the table was made by the life that it does not know. `fingerprint` 0: it is not told.
  bool Knows(uint64_t version, uint64_t fingerprint) const;
  // Errors: kNotFound
  Result<NamespaceInfo> Get(const std::string& name) const;
  // An immutable copy. Cost: O(namespaces).
  std::shared_ptr<const NamespaceTable> Snapshot() const;
  // Copies of an object besides the one of its owner, in the namespace that wants most. Cost:
  // O(namespaces).
  uint32_t copies_max() const;
  size_t size() const { return by_name_.size(); }
  uint64_t version() const { return version_; }

 private:
  Status Missing(const std::string& name) const;
  void Remember();

  std::map<std::string, NamespaceInfo> by_name_;
  std::map<uint64_t, uint64_t> made_;  // version → fingerprint; of the last ones since the start
  uint64_t version_ = 0;
  uint32_t next_id_ = 1;
};

}  // namespace ems::controller
