#pragma once
// One view of the cluster: who owns which slot, as of (term, epoch). Immutable; shared as
// shared_ptr<const DhtView>.
//
// Invariant: every owner in the table is one of nodes(), as is each holder of copies; nodes are
// sorted by id and ids are unique; the history, where it is known, is of this very view.
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cluster/slot_copies.h"
#include "cluster/slot_history.h"
#include "cluster/slot_table.h"
#include "common/cluster_id.h"
#include "common/ids.h"
#include "common/status.h"

namespace ems::v1 {
class Node;
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
  uint64_t lineage = 0;    // of what it stores and finds again; 0: nothing (controller.proto)
  uint64_t folder_id = 0;  // of its data folder in its place; 0: not known
  uint64_t listener_id =
      0;  // of the socket at which it listens (fabric/net/socket.h); 0: not known
  // Where it stands, from the widest to the narrowest, "zone/rack/host": what fails together.
  // Empty: its host_id.
  std::string failure_domain{};
  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;
};

// All but the state, which is not the node's own.
void ToProto(const NodeInfo& info, v1::Node* node);
NodeInfo FromProto(const v1::Node& node);

// Threading: immutable.
class DhtView final {
 public:
  // `previous`: by slot, which node had it before its owner, kNoNode where that is not known;
  // empty: not known of any. Cost: a pass over the view, checksums included: 0.3 ms at 1,000 nodes.
  // Errors: kInvalidArgument  an owner or a holder of copies that is not a node, a holder that owns
  // the slot or comes twice, ids out of order
  static Result<std::shared_ptr<const DhtView>> Make(ViewVersion version,
                                                     std::vector<NodeInfo> nodes, SlotTable slots,
                                                     bool frozen, SlotHistory history = {},
                                                     ClusterId cluster = kNoCluster,
                                                     std::vector<NodeId> previous = {},
                                                     SlotCopies copies = {});
  // Errors: kInvalidArgument  malformed · kDataLoss  checksum
  static Result<std::shared_ptr<const DhtView>> FromProto(const v1::View& view);
  // `base` with `delta` applied. Errors: as FromProto; kFailedPrecondition  another base
  static Result<std::shared_ptr<const DhtView>> Apply(const DhtView& base,
                                                      const v1::ViewDelta& delta);

  void ToProto(v1::View* view) const;
  // What turns `base` into this view: nodes and slots that changed, no others. Cost: a pass over
  // both views.
  void ToDelta(const DhtView& base, v1::ViewDelta* delta) const;

  ViewVersion version() const { return version_; }
  const std::vector<NodeInfo>& nodes() const { return nodes_; }
  const SlotTable& slots() const { return slots_; }
  bool frozen() const { return frozen_; }
  const SlotHistory& history() const { return history_; }
  ClusterId cluster() const { return cluster_; }  // whose view it is
  const SlotCopies& copies() const { return copies_; }
  // Of all that it says, but copies, of which older software knows nothing.
  uint64_t Fingerprint() const { return checksum_ ^ std::rotl(history_checksum_, 1); }

  NodeId OwnerId(SlotId slot) const { return slots_.owner(slot); }
  // The node that had the slot before its owner, which may not be in this view any more; kNoNode:
  // not known. A hint: no checksum covers it, and the fingerprint does not say it.
  NodeId PreviousId(SlotId slot) const {
    return previous_.empty() ? kNoNode : previous_[slot.value() % kSlotCount];
  }
  // Nodes of this view that hold copies of what is in the slot, in their order: of a namespace the
  // first `replicas` - 1 of them. As long as the view lives.
  std::span<const NodeId> Copies(SlotId slot) const { return copies_.Of(slot); }
  // The owner of `slot`, or nullptr when no server has it. The pointer lives as long as the view.
  // Cost: O(log nodes).
  const NodeInfo* Owner(SlotId slot) const { return Find(slots_.owner(slot)); }
  const NodeInfo* Find(NodeId id) const;

 private:
  DhtView() = default;
  uint64_t ComputeChecksum() const;
  // 0 where no history is known.
  uint64_t ComputeHistoryChecksum() const;
  // Of the slots that differ from those of `owners` and `history` (packed_slots.h). Where that is
  // another history, or none, each slot counts as held since this view.
  std::string PackDifference(const SlotTable& owners, const SlotHistory& history) const;
  // The previous owners of slots that have moved in the last kPreviousEpochs, and since the view
  // with this history.
  std::string PackPrevious(const SlotHistory& history) const;
  // Errors: kDataLoss
  Status CheckSums(uint64_t checksum, uint64_t history_checksum, uint64_t copies_checksum) const;
  // Errors: kInvalidArgument
  Status CheckCopies() const;

  ViewVersion version_;
  std::vector<NodeInfo> nodes_;
  SlotTable slots_;
  bool frozen_ = false;
  SlotHistory history_;
  ClusterId cluster_;
  std::vector<NodeId> previous_;  // empty, or one a slot
  SlotCopies copies_;
  // Computed once, when it is made.
  uint64_t checksum_ = 0;
  uint64_t history_checksum_ = 0;
};

}  // namespace ems
