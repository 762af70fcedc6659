#pragma once
// The cluster as people and scripts read it. Pure: what the controller said goes in, text or JSON
// comes out.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster_health.h"
#include "cluster/dht_view.h"
#include "cluster/view_cache.h"

namespace ems::v1 {
class ListNodesReply;
}

namespace ems::emsctl {

// Key look-ups that servers have answered; nothing when none could be asked.
struct HitCounts {
  uint64_t gets = 0;
  uint64_t hits = 0;
  friend bool operator==(const HitCounts&, const HitCounts&) = default;
};

// The "gets" and "hits" of one server's statistics (JSON); nothing when they are not there or not
// numbers.
std::optional<HitCounts> HitsOf(std::string_view server_stats);

// Everything `emsctl status` shows. Borrows; `view` may be null before the first view.
struct ClusterSnapshot {
  const DhtView* view = nullptr;
  const v1::ListNodesReply* nodes = nullptr;
  const NamespaceTable* namespaces = nullptr;
  const HitCounts* hits = nullptr;  // null: not known
};

Health HealthOf(const ClusterSnapshot& snapshot);
// Whether nothing gets better before somebody acts: there is no server, the view is frozen, Puts
// wait for a server longer than they should, one is ahead of the controller, or its store is an
// older copy.
bool NeedsAnOperator(const ClusterSnapshot& snapshot);
// What is wrong and what to do about it, one sentence each; empty when all is well.
std::vector<std::string> AdviceFor(const ClusterSnapshot& snapshot);

std::string StatusText(const ClusterSnapshot& snapshot);
nlohmann::ordered_json StatusJson(const ClusterSnapshot& snapshot);

std::string NodesText(const v1::ListNodesReply& nodes);
nlohmann::ordered_json NodesJson(const v1::ListNodesReply& nodes);

// Statistics of a server, one line a value: "pool.page_kind  4 KiB".
std::string StatsText(const nlohmann::ordered_json& stats);

// `with_slots` adds the ranges of slots that each node owns.
std::string ViewText(const DhtView& view, bool with_slots);
nlohmann::ordered_json ViewJson(const DhtView& view, bool with_slots);
// "0-12,15,20-4095": the slots that `node` owns; empty when there are none.
std::string SlotRanges(const SlotTable& slots, NodeId node);

}  // namespace ems::emsctl
