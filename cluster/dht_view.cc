// The view as it lies in memory, on the wire and in the store. Invariant: a view that does not
// match its checksum is never made. Bound: kSlotCount nodes, as many slots.
#include "cluster/dht_view.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "cluster/packed_slots.h"
#include "common/check.h"
#include "proto/controller.pb.h"

namespace ems {
namespace {

// More nodes than slots cannot all own one.
constexpr size_t kNodesMax = kSlotCount;
// For so many views it is told who had a slot before: about two bytes a slot that has moved.
constexpr uint64_t kPreviousEpochs = 64;
static_assert(std::endian::native == std::endian::little,
              "owners and epochs are hashed as they lie; a big-endian port swaps here");

void HashNumber(uint64_t value, Hash64Stream* hash) {
  hash->Update(std::as_bytes(std::span(&value, 1)));
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
  for (const v1::Node& node : nodes) infos.push_back(FromProto(node));
  return infos;
}

// Writes what `packed` says over `slots` and, where a history is known, over `since`. `epoch`: of
// the view that says so.
Status Overlay(std::string_view packed, uint64_t epoch, SlotTable* slots,
               std::vector<uint64_t>* since) {
  EMS_ASSIGN_OR_RETURN(const std::vector<HeldSlot> held, UnpackSlots(packed));
  for (const HeldSlot& one : held) {
    if (one.age > epoch || (since->empty() && one.age != 0)) {
      return Error(StatusCode::kInvalidArgument, "slot {} is held for {} epochs at epoch {}",
                   one.slot.value(), one.age, epoch);
    }
    slots->set_owner(one.slot, one.owner);
    if (!since->empty()) (*since)[one.slot.value()] = epoch - one.age;
  }
  return OkStatus();
}

// Writes what `packed` says over `previous`. What cannot be read says nothing.
void OverlayPrevious(std::string_view packed, std::vector<NodeId>* previous) {
  const auto held = UnpackSlots(packed);
  if (!held.ok() || held->empty()) return;
  previous->resize(kSlotCount, kNoNode);
  for (const HeldSlot& one : *held) (*previous)[one.slot.value()] = one.owner;
}

// Empty for history 0: none is known.
Result<SlotHistory> MakeHistory(uint64_t id, std::vector<uint64_t> since, uint64_t epoch) {
  if (id == 0) return SlotHistory();
  return SlotHistory::Make(id, std::move(since), epoch);
}

Result<std::vector<NodeInfo>> ApplyNodes(const std::vector<NodeInfo>& base,
                                         const v1::ViewDelta& delta) {
  EMS_ASSIGN_OR_RETURN(std::vector<NodeInfo> changed, ReadNodes(delta.nodes()));
  const auto gone_end = delta.removed().end();
  auto gone = delta.removed().begin();
  auto next = changed.begin();
  std::vector<NodeInfo> nodes;
  nodes.reserve(base.size() + changed.size());
  for (const NodeInfo& node : base) {
    while (next != changed.end() && next->id < node.id) nodes.push_back(std::move(*next++));
    if (gone != gone_end && NodeId(*gone) == node.id) {
      ++gone;
    } else if (next != changed.end() && next->id == node.id) {
      nodes.push_back(std::move(*next++));
    } else {
      nodes.push_back(node);
    }
  }
  std::move(next, changed.end(), std::back_inserter(nodes));
  if (gone == gone_end) return nodes;
  return Error(StatusCode::kInvalidArgument, "delta takes node {} away, which is not there", *gone);
}

// To a view or a delta to `base`; nothing where nobody holds copies.
template <typename Message>
void AddCopies(const SlotCopies& copies, const SlotCopies& base, ViewVersion version,
               Message* message) {
  if (copies.empty()) return;
  message->set_copies_checksum(copies.Checksum(version));
  if (std::string packed = copies.PackColumn(0, base); !packed.empty())
    message->set_copies(std::move(packed));
  if (std::string packed = copies.PackColumn(1, base); !packed.empty())
    message->set_second_copies(std::move(packed));
}

Result<ViewVersion> ReadVersion(uint64_t term, uint64_t epoch) {
  if (term == 0 || term > ViewVersion::kTermMax || epoch == 0 || epoch > ViewVersion::kEpochMax) {
    return Error(StatusCode::kInvalidArgument, "view with term {} and epoch {}: out of range", term,
                 epoch);
  }
  return ViewVersion(term, epoch);
}

}  // namespace

void ToProto(const NodeInfo& info, v1::Node* node) {
  node->set_id(info.id.value());
  node->set_name(info.name);
  node->set_boot_id(info.boot_id);
  node->set_data_address(info.data_address);
  node->set_unix_path(info.unix_path);
  node->set_host_id(info.host_id);
  node->set_http_address(info.http_address);
  node->set_capacity_bytes(info.capacity_bytes);
  node->set_lineage(info.lineage);
  node->set_folder(info.folder_id);
  node->set_listener(info.listener_id);
  node->set_failure_domain(info.failure_domain);
}

NodeInfo FromProto(const v1::Node& node) {
  return {.id = NodeId(node.id()),
          .name = node.name(),
          .boot_id = node.boot_id(),
          .data_address = node.data_address(),
          .unix_path = node.unix_path(),
          .host_id = node.host_id(),
          .http_address = node.http_address(),
          .capacity_bytes = node.capacity_bytes(),
          .lineage = node.lineage(),
          .folder_id = node.folder(),
          .listener_id = node.listener(),
          .failure_domain = node.failure_domain()};
}

Result<std::shared_ptr<const DhtView>> DhtView::Make(
    ViewVersion version, std::vector<NodeInfo> nodes, SlotTable slots, bool frozen,
    SlotHistory history, ClusterId cluster, std::vector<NodeId> previous, SlotCopies copies) {
  NodeId last = kNoNode;
  for (const NodeInfo& node : nodes) {
    if (node.id <= last) {
      return Error(StatusCode::kInvalidArgument, "view {}.{}: node id {} after {}", version.term(),
                   version.epoch(), node.id.value(), last.value());
    }
    last = node.id;
  }
  EMS_CHECK(previous.empty() || previous.size() == kSlotCount, "{} previous owners",
            previous.size());
  std::shared_ptr<DhtView> view(new DhtView());  // NOLINT: the constructor is private
  view->version_ = version;
  view->nodes_ = std::move(nodes);
  view->slots_ = std::move(slots);
  view->frozen_ = frozen;
  view->history_ = std::move(history);
  view->cluster_ = cluster;
  view->previous_ = std::move(previous);
  view->copies_ = std::move(copies);
  NodeId known = kNoNode;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    const NodeId owner = view->OwnerId(SlotId(static_cast<uint16_t>(i)));
    if (owner == known || owner == kNoNode) continue;
    if (view->Find(owner) == nullptr) {
      return Error(StatusCode::kInvalidArgument, "view {}.{}: slot {} has owner {}, not a node",
                   version.term(), version.epoch(), i, owner.value());
    }
    known = owner;
  }
  EMS_RETURN_IF_ERROR(view->CheckCopies());
  view->checksum_ = view->ComputeChecksum();
  view->history_checksum_ = view->ComputeHistoryChecksum();
  return std::shared_ptr<const DhtView>(std::move(view));
}

Status DhtView::CheckCopies() const {
  NodeId known = kNoNode;
  for (uint16_t i = 0; i < kSlotCount && !copies_.empty(); ++i) {
    const SlotId slot(i);
    const std::span<const NodeId> holders = Copies(slot);
    for (size_t n = 0; n < holders.size(); ++n) {
      const NodeId node = holders[n];
      const bool twice = std::ranges::count(holders.first(n), node) > 0;
      if (node == OwnerId(slot) || twice || (node != known && Find(node) == nullptr)) {
        return Error(StatusCode::kInvalidArgument,
                     "view {}.{}: node {} cannot hold copies of slot {}", version_.term(),
                     version_.epoch(), node.value(), i);
      }
      known = node;
    }
  }
  return OkStatus();
}

Status DhtView::CheckSums(uint64_t checksum, uint64_t history_checksum,
                          uint64_t copies_checksum) const {
  if (checksum_ == checksum && history_checksum_ == history_checksum &&
      copies_.Checksum(version_) == copies_checksum)
    return OkStatus();
  return Error(StatusCode::kDataLoss, "view {}.{}: checksum does not match", version_.term(),
               version_.epoch());
}

Result<std::shared_ptr<const DhtView>> DhtView::FromProto(const v1::View& view) {
  EMS_ASSIGN_OR_RETURN(const ViewVersion version, ReadVersion(view.term(), view.epoch()));
  EMS_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, ReadNodes(view.nodes()));
  SlotTable slots;
  std::vector<uint64_t> since(view.history() == 0 ? 0 : kSlotCount, version.epoch());
  EMS_RETURN_IF_ERROR(Overlay(view.slots(), version.epoch(), &slots, &since));
  EMS_ASSIGN_OR_RETURN(SlotHistory history,
                       MakeHistory(view.history(), std::move(since), version.epoch()));
  std::vector<NodeId> previous;
  OverlayPrevious(view.previous(), &previous);
  SlotCopies copies;
  EMS_RETURN_IF_ERROR(copies.OverlayColumn(0, view.copies()));
  EMS_RETURN_IF_ERROR(copies.OverlayColumn(1, view.second_copies()));
  EMS_ASSIGN_OR_RETURN(auto made, Make(version, std::move(nodes), std::move(slots), view.frozen(),
                                       std::move(history), ClusterId(view.cluster()),
                                       std::move(previous), std::move(copies)));
  EMS_RETURN_IF_ERROR(
      made->CheckSums(view.checksum(), view.history_checksum(), view.copies_checksum()));
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
  EMS_ASSIGN_OR_RETURN(std::vector<NodeInfo> nodes, ApplyNodes(base.nodes(), delta));
  SlotTable slots = base.slots();
  std::vector<uint64_t> since(delta.history() == 0 ? 0 : kSlotCount, version.epoch());
  if (delta.history() != 0 && delta.history() == base.history().id()) {
    for (uint16_t i = 0; i < kSlotCount; ++i) since[i] = base.history().since(SlotId(i));
  }
  EMS_RETURN_IF_ERROR(Overlay(delta.slots(), version.epoch(), &slots, &since));
  EMS_ASSIGN_OR_RETURN(SlotHistory history,
                       MakeHistory(delta.history(), std::move(since), version.epoch()));
  std::vector<NodeId> previous = base.previous_;
  for (uint16_t i = 0; i < kSlotCount && !previous.empty(); ++i) {
    const SlotId slot(i);
    const bool same = history.known() && history.id() == base.history().id() &&
                      history.since(slot) == base.history().since(slot);
    if (!same) previous[i] = kNoNode;
  }
  OverlayPrevious(delta.previous(), &previous);
  SlotCopies copies;
  if (delta.copies_checksum() != 0) {
    copies = base.copies();
    EMS_RETURN_IF_ERROR(copies.OverlayColumn(0, delta.copies()));
    EMS_RETURN_IF_ERROR(copies.OverlayColumn(1, delta.second_copies()));
  }
  EMS_ASSIGN_OR_RETURN(
      auto made, Make(version, std::move(nodes), std::move(slots), delta.frozen(),
                      std::move(history), base.cluster(), std::move(previous), std::move(copies)));
  EMS_RETURN_IF_ERROR(
      Prefixed(made->CheckSums(delta.checksum(), delta.history_checksum(), delta.copies_checksum()),
               "after a delta"));
  return made;
}

std::string DhtView::PackDifference(const SlotTable& owners, const SlotHistory& history) const {
  const bool same_history = history_.known() && history.id() == history_.id();
  const uint64_t epoch = version_.epoch();
  std::vector<HeldSlot> held;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    const uint64_t since = history_.known() ? history_.since(slot) : epoch;
    EMS_CHECK(since <= epoch, "slot {} since {} at epoch {}", i, since, epoch);
    const uint64_t since_before = same_history ? history.since(slot) : epoch;
    if (OwnerId(slot) == owners.owner(slot) && since == since_before) continue;
    held.push_back({slot, OwnerId(slot), epoch - since});
  }
  return PackSlots(std::move(held));
}

std::string DhtView::PackPrevious(const SlotHistory& history) const {
  if (previous_.empty() || !history_.known()) return {};
  const bool same_history = history.id() == history_.id();
  std::vector<HeldSlot> held;
  for (uint16_t i = 0; i < kSlotCount; ++i) {
    const SlotId slot(i);
    const uint64_t since = history_.since(slot);
    if (previous_[i] == kNoNode || version_.epoch() - since >= kPreviousEpochs ||
        (same_history && history.since(slot) == since))
      continue;
    held.push_back({slot, previous_[i], 0});
  }
  return PackSlots(std::move(held));
}

void DhtView::ToProto(v1::View* view) const {
  EMS_CHECK(version_.term() != 0 && version_.epoch() != 0, "a view without a version");
  view->set_term(version_.term());
  view->set_epoch(version_.epoch());
  for (const NodeInfo& node : nodes_) ems::ToProto(node, view->add_nodes());
  view->set_slots(PackDifference(SlotTable(), SlotHistory()));
  if (std::string previous = PackPrevious(SlotHistory()); !previous.empty())
    view->set_previous(std::move(previous));
  view->set_frozen(frozen_);
  view->set_cluster(cluster_.value());
  view->set_checksum(checksum_);
  AddCopies(copies_, SlotCopies(), version_, view);
  if (!history_.known()) return;
  view->set_history(history_.id());
  view->set_history_checksum(history_checksum_);
}

void DhtView::ToDelta(const DhtView& base, v1::ViewDelta* delta) const {
  EMS_CHECK(base.version_ < version_, "a delta from view {} back to {}", base.version_.packed(),
            version_.packed());
  delta->set_base_term(base.version_.term());
  delta->set_base_epoch(base.version_.epoch());
  delta->set_term(version_.term());
  delta->set_epoch(version_.epoch());
  for (const NodeInfo& node : nodes_) {
    const NodeInfo* const before = base.Find(node.id);
    if (before == nullptr || *before != node) ems::ToProto(node, delta->add_nodes());
  }
  for (const NodeInfo& node : base.nodes_)
    if (Find(node.id) == nullptr) delta->add_removed(node.id.value());
  delta->set_slots(PackDifference(base.slots_, base.history_));
  if (std::string previous = PackPrevious(base.history_); !previous.empty())
    delta->set_previous(std::move(previous));
  delta->set_history(history_.id());
  delta->set_history_checksum(history_checksum_);
  delta->set_frozen(frozen_);
  delta->set_checksum(checksum_);
  AddCopies(copies_, base.copies_, version_, delta);
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
  hash.Update(std::as_bytes(slots_.owners()));
  return hash.Digest();
}

uint64_t DhtView::ComputeHistoryChecksum() const {
  if (!history_.known()) return 0;
  Hash64Stream hash;
  HashNumber(version_.packed(), &hash);
  HashNumber(history_.id(), &hash);
  HashNumber(nodes_.size(), &hash);
  for (const NodeInfo& node : nodes_) HashNumber(node.lineage, &hash);
  hash.Update(std::as_bytes(history_.all_since()));
  if (cluster_ != kNoCluster) HashNumber(cluster_.value(), &hash);
  return hash.Digest();
}

}  // namespace ems
