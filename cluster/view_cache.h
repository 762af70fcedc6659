#pragma once
// The newest view and namespace table that this process knows. Versions only grow.
//
// Filled by ControllerClient's watch (or by a test), read by the SDK's router and the server's
// ownership check.
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/guarded.h"
#include "common/ids.h"

namespace ems {

enum class Durability : uint8_t { kDefault = 0, kDram = 1, kSsd = 2 };
enum class ChecksumPolicy : uint8_t { kAlways = 0, kSampled = 1, kNever = 2 };

struct NamespaceInfo {
  NamespaceRef ref;
  std::string name;
  uint64_t dram_quota_bytes = 0;  // over all servers; 0: no limit but the pool
  uint64_t dram_reserved_bytes = 0;
  uint64_t ssd_quota_bytes = 0;
  uint64_t ssd_reserved_bytes = 0;
  Durability durability = Durability::kDram;
  ChecksumPolicy checksum = ChecksumPolicy::kAlways;
  bool relaxed_sync = false;  // kSsd survives the death of the process, not a power failure
  bool immutable = false;     // a key has one value for ever; servers are read without a lease
  uint32_t replicas = 1;      // servers that an object is on; above 1 only where immutable
  friend bool operator==(const NamespaceInfo&, const NamespaceInfo&) = default;
};

// All namespaces as of `version`. Immutable once shared.
struct NamespaceTable {
  uint64_t version = 0;
  std::map<NamespaceId, NamespaceInfo> by_id;
  const NamespaceInfo* Find(std::string_view name) const;
  // Of the ids and generations: two tables of one version that differ in it come from two copies of
  // one controller's store. Names and policies are left out, as newer software may have more of
  // them. Never 0. Cost: O(namespaces).
  uint64_t Fingerprint() const;
};

// Threading: thread-safe. Readers share the pointers; nothing blocks but the Wait calls.
class ViewCache final {
 public:
  using View = std::shared_ptr<const DhtView>;
  using Namespaces = std::shared_ptr<const NamespaceTable>;

  // Null until the first view.
  View view();
  // Never null; empty until the first table.
  Namespaces namespaces();

  // The cluster that this process belongs to: the first one that is named here, for as long as the
  // process lives. kNoCluster: none yet.
  ClusterId cluster();
  // Joins it, unless it is kNoCluster. Errors: kFailedPrecondition  this process belongs to another
  Status Join(ClusterId cluster);

  // Takes a newer view; false, and no change, if it is not newer than the one here, or another
  // cluster's.
  bool Install(View view);
  bool Install(Namespaces namespaces);

  // Waits until the view is `at_least` or newer; the view, or null when the deadline passed.
  View WaitForView(ViewVersion at_least, Deadline deadline);

 private:
  struct State {
    View view;
    ClusterId cluster;
    Namespaces namespaces = std::make_shared<const NamespaceTable>();
  };
  Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems
