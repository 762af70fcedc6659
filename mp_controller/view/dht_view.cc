// The view as it lies in memory, on the wire and in the store. Invariant: a view that does not
// match its checksum is never made. Bound: 4096 nodes, 4096 slots.
#include "mp_controller/view/dht_view.h"

#include <algorithm>
#include <utility>

#include "proto/controller.pb.h"

namespace ems {
namespace {

// More nodes than slots cannot all own one.
constexpr size_t kNodesMax = kSlotCount;
constexpr size_t kOwnersBytes = kSlotCount * sizeof(uint32_t);

NodeInfo ToInfo(const v1::Node& node) {
  return {.id = NodeId(node.id()),
          .name = node.name(),
          .boot_id = node.boot_id(),
          .data_address = node.data_address(),
          .unix_path = node.unix_path(),
          .host_id = node.host_id(),
          .http_address = node.http_address(),
          .capacity_bytes = node.capacity_bytes(),
          .lineage = node.lineage()};
}

void FromInfo(const NodeInfo& info, v1::Node* node) {
  node->set_id(info.id.value());
  node->set_name(info.name);
  node->set_boot_id(info.boot_id);
  node->set_data_address(info.data_address);
  node->set_unix_path(info.unix_path);
  node->set_host_id(info.host_id);
  node->set_http_address(info.http_address);
  node->set_capacity_bytes(info.capacity_bytes);
  node->set_state(v1::NODE_LIVE);
  node->set_lineage(info.lineage);
}

// Little-endian whatever the machine, so that a view has the same bytes everywhere.
void AppendWord(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t WordAt(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[offset + i])) << (8 * i);
  }
  return value;
}

std::string PackOwners(const SlotTable& slots) {
  std::string packed;
  packed.reserve(kOwnersBytes);
  for (uint32_t slot = 0; slot < kSlotCount; ++slot) {
    AppendWord(slots.owner(SlotId(static_cast<uint16_t>(slot))).value(), &packed);
  }
  return packed;
}

void HashNumber(uint64_t value, Hash64Stream* hash) {
  std::string bytes;
  AppendWord(static_cast<uint32_t>(value), &bytes);
  AppendWord(static_cast<uint32_t>(value >> 32), &bytes);
  hash->Update(AsBytes(bytes));
}

// Length first, so that no two lists of strings hash alike.
void HashText(std::string_view text, Hash64Stream* hash) {
  HashNumber(text.size(), hash);
  hash->Update(AsBytes(text));
}

template <typename Nodes>
Result<std::vector<NodeInfo>> ReadNodes(const Nodes& nodes) {
  if (static_cast<size_t>(nodes.size()) > kNodesMax) {
    return Error(StatusCode::kInvalidArgument, "view with {} nodes: at most {} are allowed",
                 nodes.size(), kNodesMax);
  }
  std::vector<NodeInfo> infos;
  infos.reserve(static_cast<size_t>(nodes.size()));
  for (const v1::Node& node : nodes) infos.push_back(ToInfo(node));
  return infos;
}

Result<ViewVersion> ReadVersion(uint64_t term, uint64_t epoch) {
  if (term == 0 || term > ViewVersion::kTermMax || epoch == 0 || epoch > ViewVersion::kEpochMax) {
    return Error(StatusCode::kInvalidArgument, "view with term {} and epoch {}: out of range", term,
                 epoch);
  }
  return ViewVersion(term, epoch);
}

}  // namespace

Result<std::shared_ptr<const DhtView>> DhtView::Make(ViewVersion version,
                                                     std::vector<NodeInfo> nodes,
                                                     const SlotTable& slots, bool frozen,
                                                     SlotHistory history) {
  NodeId previous = kNoNode;
  for (const NodeInfo& node : nodes) {
    if (node.id <= previous) {
      return Error(StatusCode::kInvalidArgument, "view {}.{}: node id {} after {}", version.term(),
                   version.epoch(), node.id.value(), previous.value());
    }
    previous = node.id;
  }
  std::shared_ptr<DhtView> view(new DhtView());  // NOLINT: the constructor is private
  view->version_ = version;
  view->nodes_ = std::move(nodes);
  view->slots_ = slots;
  view->frozen_ = frozen;
  view->history_ = std::move(history);
  NodeId known = kNoNode;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const NodeId owner = slots.owner(SlotId(static_cast<uint16_t>(i)));
    if (owner == known || owner == kNoNode) continue;
    if (view->Find(owner) == nullptr) {
      return Error(StatusCode::kInvalidArgument, "view {}.{}: slot {} has owner {}, not a node",
                   version.term(), version.epoch(), i, owner.value());
    }
    known = owner;
  }
  return std::shared_ptr<const DhtView>(std::move(view));
}

Status DhtView::CheckSums(uint64_t checksum, uint64_t history_checksum) const {
  if (ComputeChecksum() == checksum && HistoryChecksum() == history_checksum) return OkStatus();
  return Error(StatusCode::kDataLoss, "view {}.{}: checksum does not match", version_.term(),
               version_.epoch());
}

Result<std::shared_ptr<const DhtView>> DhtView::FromProto(const v1::View& view) {
  EMS_ASSIGN_OR_RETURN(const ViewVersion version, ReadVersion(view.term(), view.epoch()));
  EMS_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, ReadNodes(view.nodes()));
  if (view.owners().size() != kOwnersBytes) {
    return Error(StatusCode::kInvalidArgument, "view {}.{}: {} B of owners instead of {}",
                 view.term(), view.epoch(), view.owners().size(), kOwnersBytes);
  }
  SlotTable slots;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    slots.set_owner(SlotId(static_cast<uint16_t>(i)), NodeId(WordAt(view.owners(), size_t{i} * 4)));
  }
  SlotHistory history;
  if (view.history() != 0) {
    std::vector<uint64_t> since;
    since.reserve(static_cast<size_t>(view.held_for_size()));
    // One that is longer ago than views are is later than this view, and refused.
    for (const uint64_t ago : view.held_for()) since.push_back(view.epoch() - ago);
    EMS_ASSIGN_OR_RETURN(history,
                         SlotHistory::Make(view.history(), std::move(since), view.epoch()));
  }
  EMS_ASSIGN_OR_RETURN(auto made,
                       Make(version, std::move(nodes), slots, view.frozen(), std::move(history)));
  EMS_RETURN_IF_ERROR(made->CheckSums(view.checksum(), view.history_checksum()));
  return made;
}

Result<std::shared_ptr<const DhtView>> DhtView::Apply(const DhtView& base,
                                                      const v1::ViewDelta& delta) {
  if (delta.base_term() != base.version().term() || delta.base_epoch() != base.version().epoch()) {
    return Error(StatusCode::kFailedPrecondition, "delta for view {}.{} instead of {}.{}",
                 delta.base_term(), delta.base_epoch(), base.version().term(),
                 base.version().epoch());
  }
  EMS_ASSIGN_OR_RETURN(const ViewVersion version, ReadVersion(delta.term(), delta.epoch()));
  EMS_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, ReadNodes(delta.nodes()));
  if (delta.slots_size() != delta.owners_size()) {
    return Error(StatusCode::kInvalidArgument, "delta with {} slots and {} owners",
                 delta.slots_size(), delta.owners_size());
  }
  const bool known = delta.history() != 0;
  if (known && (delta.since_size() != delta.slots_size() ||
                (delta.history() != base.history().id() &&
                 delta.slots_size() != static_cast<int>(kSlotCount)))) {
    return Error(StatusCode::kInvalidArgument, "delta with {} slots and the history of {}",
                 delta.slots_size(), delta.since_size());
  }
  SlotTable slots = base.slots();
  std::vector<uint64_t> since(known ? kSlotCount : 0);
  if (known && base.history().id() == delta.history()) {
    for (uint16_t i = 0; i < kSlotCount; ++i) since[i] = base.history().since(SlotId(i));
  }
  for (int i = 0; i < delta.slots_size(); ++i) {
    if (delta.slots(i) >= kSlotCount) {
      return Error(StatusCode::kInvalidArgument, "delta names slot {}: there are {}",
                   delta.slots(i), kSlotCount);
    }
    slots.set_owner(SlotId(static_cast<uint16_t>(delta.slots(i))), NodeId(delta.owners(i)));
    if (known) since[delta.slots(i)] = delta.since(i);
  }
  SlotHistory history;
  if (known) {
    EMS_ASSIGN_OR_RETURN(history,
                         SlotHistory::Make(delta.history(), std::move(since), delta.epoch()));
  }
  EMS_ASSIGN_OR_RETURN(auto made,
                       Make(version, std::move(nodes), slots, delta.frozen(), std::move(history)));
  EMS_RETURN_IF_ERROR(
      Prefixed(made->CheckSums(delta.checksum(), delta.history_checksum()), "after a delta"));
  return made;
}

void DhtView::ToProto(v1::View* view) const {
  view->set_term(version_.term());
  view->set_epoch(version_.epoch());
  for (const NodeInfo& node : nodes_) FromInfo(node, view->add_nodes());
  view->set_owners(PackOwners(slots_));
  view->set_frozen(frozen_);
  view->set_checksum(ComputeChecksum());
  if (!history_.known()) return;
  view->set_history(history_.id());
  for (uint16_t i = 0; i < kSlotCount; ++i)
    view->add_held_for(version_.epoch() - history_.since(SlotId(i)));
  view->set_history_checksum(HistoryChecksum());
}

void DhtView::ToDelta(const DhtView& base, v1::ViewDelta* delta) const {
  delta->set_base_term(base.version_.term());
  delta->set_base_epoch(base.version_.epoch());
  delta->set_term(version_.term());
  delta->set_epoch(version_.epoch());
  for (const NodeInfo& node : nodes_) FromInfo(node, delta->add_nodes());
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(static_cast<uint16_t>(i));
    const bool same_since =
        history_.id() == base.history_.id() &&
        (!history_.known() || history_.since(slot) == base.history_.since(slot));
    if (slots_.owner(slot) == base.slots_.owner(slot) && (same_since || !history_.known()))
      continue;
    delta->add_slots(i);
    delta->add_owners(slots_.owner(slot).value());
    if (history_.known()) delta->add_since(history_.since(slot));
  }
  delta->set_history(history_.id());
  delta->set_history_checksum(HistoryChecksum());
  delta->set_frozen(frozen_);
  delta->set_checksum(ComputeChecksum());
}

const NodeInfo* DhtView::Find(NodeId id) const {
  const auto it =
      std::lower_bound(nodes_.begin(), nodes_.end(), id,
                       [](const NodeInfo& node, NodeId wanted) { return node.id < wanted; });
  return it != nodes_.end() && it->id == id ? &*it : nullptr;
}

uint64_t DhtView::ComputeChecksum() const {
  Hash64Stream hash;
  HashNumber(version_.packed(), &hash);
  HashNumber(frozen_ ? 1 : 0, &hash);
  HashNumber(nodes_.size(), &hash);
  for (const NodeInfo& node : nodes_) {
    HashNumber(node.id.value(), &hash);
    HashText(node.name, &hash);
    HashNumber(node.boot_id, &hash);
    HashText(node.data_address, &hash);
    HashText(node.unix_path, &hash);
    HashText(node.host_id, &hash);
    HashText(node.http_address, &hash);
    HashNumber(node.capacity_bytes, &hash);
  }
  hash.Update(AsBytes(PackOwners(slots_)));
  return hash.Digest();
}

uint64_t DhtView::HistoryChecksum() const {
  if (!history_.known()) return 0;
  Hash64Stream hash;
  HashNumber(version_.packed(), &hash);
  HashNumber(history_.id(), &hash);
  HashNumber(nodes_.size(), &hash);
  for (const NodeInfo& node : nodes_) HashNumber(node.lineage, &hash);
  for (uint16_t i = 0; i < kSlotCount; ++i) HashNumber(history_.since(SlotId(i)), &hash);
  return hash.Digest();
}

}  // namespace ems
