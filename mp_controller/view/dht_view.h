#pragma once
// One view of the cluster: who owns which slot, as of (term, epoch). Immutable; shared as
// shared_ptr<const DhtView>.
//
// Invariant: every owner in the table is one of nodes(); nodes are sorted by id and ids are unique;
// the history, where it is known, is of this very view.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "mp_controller/view/slot_history.h"
#include "mp_controller/view/slot_table.h"

namespace ems::v1 {
class View;
class ViewDelta;
}  // namespace ems::v1

namespace ems {

struct NodeInfo {
  NodeId id;
  std::string name;
  uint64_t boot_id = 0;
  std::string data_address;  // host:port
  std::string unix_path;     // empty: none
  std::string host_id;
  std::string http_address;
  uint64_t capacity_bytes = 0;
  uint64_t lineage = 0;  // of what it stores and finds again; 0: nothing (controller.proto)
  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;
};

// Threading: immutable.
class DhtView final {
 public:
  // Errors: kInvalidArgument  an owner that is not a node, ids out of order
  static Result<std::shared_ptr<const DhtView>> Make(ViewVersion version,
                                                     std::vector<NodeInfo> nodes,
                                                     const SlotTable& slots, bool frozen,
                                                     SlotHistory history = {});
  // Errors: kInvalidArgument  malformed · kDataLoss  checksum
  static Result<std::shared_ptr<const DhtView>> FromProto(const v1::View& view);
  // `base` with `delta` applied. Errors: as FromProto; kFailedPrecondition  another base
  static Result<std::shared_ptr<const DhtView>> Apply(const DhtView& base,
                                                      const v1::ViewDelta& delta);

  void ToProto(v1::View* view) const;
  // What turns `base` into this view.
  void ToDelta(const DhtView& base, v1::ViewDelta* delta) const;

  ViewVersion version() const { return version_; }
  const std::vector<NodeInfo>& nodes() const { return nodes_; }
  const SlotTable& slots() const { return slots_; }
  bool frozen() const { return frozen_; }
  const SlotHistory& history() const { return history_; }

  NodeId OwnerId(SlotId slot) const { return slots_.owner(slot); }
  // The owner of `slot`, or nullptr when no server has it. The pointer lives as long as the view.
  // Cost: O(log nodes).
  const NodeInfo* Owner(SlotId slot) const { return Find(slots_.owner(slot)); }
  const NodeInfo* Find(NodeId id) const;

 private:
  DhtView() = default;
  uint64_t ComputeChecksum() const;
  // Of what older readers do not know of; 0 where no history is known.
  uint64_t HistoryChecksum() const;
  // Errors: kDataLoss
  Status CheckSums(uint64_t checksum, uint64_t history_checksum) const;

  ViewVersion version_;
  std::vector<NodeInfo> nodes_;
  SlotTable slots_;
  bool frozen_ = false;
  SlotHistory history_;
};

}  // namespace ems
