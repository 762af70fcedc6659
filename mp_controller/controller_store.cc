#include "mp_controller/controller_store.h"

#include <charconv>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "mp_controller/durable_rows.h"
#include "mp_controller/view/namespace_codec.h"
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
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
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
  if (key == kTermKey) state->term = number;
  if (key == kEpochKey) state->epoch = number;
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
    state->nodes.push_back({.id = NodeId(node.id()), .name = node.name()});
  } else if (key.starts_with(kNamespacePrefix)) {
    EMS_ASSIGN_OR_RETURN(const v1::Namespace ns, Parse<v1::Namespace>(key, value));
    EMS_ASSIGN_OR_RETURN(NamespaceInfo info, FromProto(ns));
    state->namespaces.push_back(std::move(info));
  } else if (key.starts_with(kViewPrefix)) {
    EMS_ASSIGN_OR_RETURN(const v1::View view, Parse<v1::View>(key, value));
    EMS_ASSIGN_OR_RETURN(state->view, DhtView::FromProto(view));
  }
  return OkStatus();
}

void PutCounter(RowChange* change, std::string_view key, uint64_t value) {
  change->put.emplace_back(key, std::to_string(value));
}

}  // namespace

struct ControllerStore::Impl {
  std::unique_ptr<DurableRows> rows;
  std::deque<std::string> view_keys;  // oldest first, at most kViewsKept + 1
};

ControllerStore::ControllerStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControllerStore::~ControllerStore() = default;

Result<std::unique_ptr<ControllerStore>> ControllerStore::Open(const std::string& folder) {
  auto impl = std::make_unique<Impl>();
  EMS_ASSIGN_OR_RETURN(impl->rows, DurableRows::Open(folder, std::string(kAdvice)));
  return std::unique_ptr<ControllerStore>(new ControllerStore(std::move(impl)));  // NOLINT: private
}

Result<StoredState> ControllerStore::Load() {
  StoredState state;
  impl_->view_keys.clear();
  EMS_RETURN_IF_ERROR(
      impl_->rows->ForEach([&](std::string_view key, std::string_view value) -> Status {
        if (key.starts_with(kViewPrefix)) impl_->view_keys.emplace_back(key);
        return TakeRecord(key, value, &state);
      }));
  if (state.view != nullptr &&
      (state.view->version().term() > state.term || state.view->version().epoch() > state.epoch)) {
    return impl_->rows->Damaged("a view is newer than the term or epoch counter");
  }
  return state;
}

Status ControllerStore::PutTerm(uint64_t term) {
  RowChange change;
  PutCounter(&change, kTermKey, term);
  return impl_->rows->Write(change);
}

Status ControllerStore::PutView(const DhtView& view) {
  v1::View proto;
  view.ToProto(&proto);
  const std::string key = ViewKey(view.version());
  RowChange change;
  change.put.emplace_back(key, proto.SerializeAsString());
  PutCounter(&change, kEpochKey, view.version().epoch());
  const bool full = impl_->view_keys.size() >= kViewsKept;
  if (full) change.drop.push_back(impl_->view_keys.front());
  EMS_RETURN_IF_ERROR(impl_->rows->Write(change));
  if (full) impl_->view_keys.pop_front();
  impl_->view_keys.push_back(key);
  return OkStatus();
}

Status ControllerStore::PutNode(const StoredNode& node, uint32_t next_node_id) {
  v1::Node proto;
  proto.set_id(node.id.value());
  proto.set_name(node.name);
  RowChange change;
  change.put.emplace_back(fmt::format("{}{}", kNodePrefix, node.name), proto.SerializeAsString());
  PutCounter(&change, kNextNodeKey, next_node_id);
  return impl_->rows->Write(change);
}

Status ControllerStore::DeleteNode(const std::string& name) {
  return impl_->rows->Write({.put = {}, .drop = {fmt::format("{}{}", kNodePrefix, name)}});
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
  return impl_->rows->Write(change);
}

}  // namespace ems::controller
