#include "mp_controller/controller_store.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/namespace_codec.h"
#include "common/check.h"
#include "common/parse_number.h"
#include "mp_controller/rows/durable_rows.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

constexpr std::string_view kAdvice =
    "Move the folder away to begin a new cluster: stop all servers, empty their data folders, "
    "start the controller, create the namespaces again, start servers and clients. An older copy "
    "of the folder would use view numbers again: only with every server stopped and its data "
    "folder empty";

constexpr std::string_view kTermKey = "meta/term";
constexpr std::string_view kEpochKey = "meta/epoch";
constexpr std::string_view kLeaseKey = "meta/lease_ms";
constexpr std::string_view kHeartbeatKey = "meta/heartbeat_ms";
constexpr std::string_view kActiveKey = "meta/active_view";
constexpr std::string_view kNextNodeKey = "meta/next_node_id";
constexpr std::string_view kNextNamespaceKey = "meta/next_namespace_id";
constexpr std::string_view kNamespacesVersionKey = "meta/namespaces_version";
constexpr std::string_view kNodePrefix = "node/";
constexpr std::string_view kNamespacePrefix = "namespace/";
constexpr std::string_view kViewPrefix = "view/";

std::string NamespaceKey(NamespaceId id) {
  return fmt::format("{}{:08x}", kNamespacePrefix, id.value());
}
// Fixed width, so that views sort by version.
std::string ViewKey(ViewVersion version) {
  return fmt::format("{}{:016x}", kViewPrefix, version.packed());
}

Result<uint64_t> ParseCounter(std::string_view text) {
  if (const auto value = ParseNumber<uint64_t>(text)) return *value;
  return Error(StatusCode::kDataLoss, "counter \"{}\" is no number", Printable(text));
}

template <typename Proto>
Result<Proto> Parse(std::string_view key, std::string_view value) {
  Proto proto;
  if (proto.ParseFromArray(value.data(), static_cast<int>(value.size()))) return proto;
  return Error(StatusCode::kDataLoss, "record {} cannot be read", Printable(key));
}

Status TakeCounter(std::string_view key, std::string_view value, StoredState* state) {
  EMS_ASSIGN_OR_RETURN(const uint64_t number, ParseCounter(value));
  if (key == kClusterKey) state->cluster = ClusterId(number);
  if (key == kTermKey) state->term = number;
  if (key == kEpochKey) state->epoch = number;
  if (key == kLeaseKey) state->given.lease_ms = number;
  if (key == kHeartbeatKey) state->given.heartbeat_ms = number;
  if (key == kActiveKey) state->active = ViewVersion::FromPacked(number);
  if (key == kNextNodeKey) state->next_node_id = static_cast<uint32_t>(number);
  if (key == kNextNamespaceKey) state->next_namespace_id = static_cast<uint32_t>(number);
  if (key == kNamespacesVersionKey) state->namespaces_version = number;
  return OkStatus();
}

// One record into `state`. Views come in order, so the last one is the newest.
Status TakeRecord(std::string_view key, std::string_view value, StoredState* state) {
  if (key.starts_with("meta/")) return TakeCounter(key, value, state);
  if (key.starts_with(kNodePrefix)) {
    EMS_ASSIGN_OR_RETURN(const v1::Node node, Parse<v1::Node>(key, value));
    state->nodes.push_back({.id = NodeId(node.id()),
                            .name = node.name(),
                            .stopped_boot_id = node.boot_id(),
                            .left = node.state() == v1::NODE_LEFT,
                            .times = {node.joined_unix_ms(), node.left_unix_ms()},
                            .dram_bytes = node.dram_set_bytes(),
                            .drained = node.drained()});
  } else if (key.starts_with(kNamespacePrefix)) {
    EMS_ASSIGN_OR_RETURN(const v1::Namespace ns, Parse<v1::Namespace>(key, value));
    EMS_ASSIGN_OR_RETURN(NamespaceInfo info, FromProto(ns));
    state->namespaces.push_back(std::move(info));
  } else if (key.starts_with(kViewPrefix)) {
    EMS_ASSIGN_OR_RETURN(const v1::View view, Parse<v1::View>(key, value));
    EMS_ASSIGN_OR_RETURN(auto read, DhtView::FromProto(view));
    state->views.push_back(std::move(read));
  }
  return OkStatus();
}

void PutCounter(RowChange* change, std::string_view key, uint64_t value) {
  change->put.emplace_back(key, std::to_string(value));
}

}  // namespace

ControllerStore::ControllerStore(std::unique_ptr<RowStore> rows) : rows_(std::move(rows)) {}

ControllerStore::~ControllerStore() = default;

Result<std::unique_ptr<ControllerStore>> ControllerStore::Open(const std::string& folder) {
  EMS_ASSIGN_OR_RETURN(auto rows, DurableRows::Open(folder, std::string(kAdvice)));
  return std::make_unique<ControllerStore>(std::move(rows));
}

Result<StoredState> ControllerStore::Load() {
  StoredState state;
  view_keys_.clear();
  EMS_RETURN_IF_ERROR(rows_->ForEach([&](std::string_view key, std::string_view value) -> Status {
    if (key.starts_with(kViewPrefix)) view_keys_.emplace_back(key);
    return TakeRecord(key, value, &state);
  }));
  if (!state.views.empty()) {
    const ViewVersion newest = state.views.back()->version();
    if (newest.term() > state.term || newest.epoch() > state.epoch)
      return rows_->Damaged("a view is newer than the term or epoch counter");
  }
  return state;
}

Status ControllerStore::PutCluster(ClusterId cluster) {
  RowChange change;
  PutCounter(&change, kClusterKey, cluster.value());
  return rows_->Write(change);
}

Status ControllerStore::PutTerm(uint64_t term) {
  RowChange change;
  PutCounter(&change, kTermKey, term);
  return rows_->Write(change);
}

Status ControllerStore::PutTimes(const GivenTimes& given) {
  RowChange change;
  PutCounter(&change, kLeaseKey, given.lease_ms);
  PutCounter(&change, kHeartbeatKey, given.heartbeat_ms);
  return rows_->Write(change);
}

Status ControllerStore::PutView(const std::shared_ptr<const DhtView>& view,
                                const ViewWindow& window) {
  v1::View proto;
  view->ToProto(&proto);
  const std::string key = ViewKey(view->version());
  RowChange change;
  change.put.emplace_back(key, proto.SerializeAsString());
  PutCounter(&change, kEpochKey, view->version().epoch());
  EMS_CHECK(view_keys_.empty() || view_keys_.back() < key, "view {} after {}", key,
            view_keys_.back());
  std::deque<std::string> kept = KeepOpen(window, &change);
  // Without an open view the next start would take slots for free whose old owner still has them.
  EMS_CHECK(kept.size() < kViewsKept, "{} open views", kept.size());
  EMS_RETURN_IF_ERROR(rows_->Write(change));
  view_keys_ = std::move(kept);
  view_keys_.push_back(key);
  return OkStatus();
}

Status ControllerStore::PutWindow(const ViewWindow& window) {
  RowChange change;
  std::deque<std::string> kept = KeepOpen(window, &change);
  EMS_CHECK(view_keys_.empty() || (!kept.empty() && kept.back() == view_keys_.back()),
            "the newest view is dropped");
  EMS_RETURN_IF_ERROR(rows_->Write(change));
  view_keys_ = std::move(kept);
  return OkStatus();
}

std::deque<std::string> ControllerStore::KeepOpen(const ViewWindow& window,
                                                  RowChange* change) const {
  PutCounter(change, kActiveKey, window.active.packed());
  std::set<std::string> open;
  for (const ViewVersion version : window.open) open.insert(ViewKey(version));
  std::deque<std::string> kept;
  for (const std::string& known : view_keys_)
    open.contains(known) ? kept.push_back(known) : change->drop.push_back(known);
  return kept;
}

Status ControllerStore::PutNode(const StoredNode& node, uint32_t next_node_id) {
  v1::Node proto;
  proto.set_id(node.id.value());
  proto.set_name(node.name);
  proto.set_joined_unix_ms(node.times.joined_unix_ms);
  proto.set_left_unix_ms(node.times.left_unix_ms);
  proto.set_dram_set_bytes(node.dram_bytes);
  proto.set_drained(node.drained);
  if (node.left) proto.set_state(v1::NODE_LEFT);
  proto.set_boot_id(node.stopped_boot_id);
  RowChange change;
  change.put.emplace_back(fmt::format("{}{}", kNodePrefix, node.name), proto.SerializeAsString());
  PutCounter(&change, kNextNodeKey, next_node_id);
  return rows_->Write(change);
}

Status ControllerStore::DeleteNode(const std::string& name) {
  return rows_->Write({.put = {}, .drop = {fmt::format("{}{}", kNodePrefix, name)}});
}

Status ControllerStore::PutNamespace(const NamespaceChange& namespace_change) {
  RowChange change;
  const std::string key = NamespaceKey(namespace_change.info.ref.id);
  if (namespace_change.deleted) {
    change.drop.push_back(key);
  } else {
    v1::Namespace proto;
    ToProto(namespace_change.info, &proto);
    change.put.emplace_back(key, proto.SerializeAsString());
  }
  PutCounter(&change, kNamespacesVersionKey, namespace_change.version);
  PutCounter(&change, kNextNamespaceKey, namespace_change.next_id);
  return rows_->Write(change);
}

}  // namespace ems::controller
