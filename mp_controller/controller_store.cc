#include "mp_controller/controller_store.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <charconv>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/logging.h"
#include "common/rocksdb_options.h"
#include "mp_controller/view/namespace_codec.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// Present once a store has been made here: from then on a missing database is damage, not a first
// start.
constexpr std::string_view kMarkerName = "EMS_CONTROLLER_STORE";
constexpr std::string_view kMarkerText = "format 1\n";
constexpr std::string_view kDatabaseName = "store";
constexpr Duration kMendEvery = std::chrono::seconds(1);
constexpr Duration kMendEveryMax = std::chrono::seconds(15);

constexpr std::string_view kTermKey = "meta/term";
constexpr std::string_view kEpochKey = "meta/epoch";
constexpr std::string_view kNextNodeKey = "meta/next_node_id";
constexpr std::string_view kNextNamespaceKey = "meta/next_namespace_id";
constexpr std::string_view kNamespacesVersionKey = "meta/namespaces_version";
constexpr std::string_view kNodePrefix = "node/";
constexpr std::string_view kNamespacePrefix = "namespace/";
constexpr std::string_view kViewPrefix = "view/";

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

std::string NamespaceKey(NamespaceId id) {
  return fmt::format("{}{:08x}", kNamespacePrefix, id.value());
}
// Fixed width, so that views sort by version.
std::string ViewKey(ViewVersion version) {
  return fmt::format("{}{:016x}", kViewPrefix, version.packed());
}

Status Damaged(const std::string& folder, std::string_view what) {
  return Error(
      StatusCode::kDataLoss,
      "the controller's store in {} is damaged: {}. Nothing was changed. Move the "
      "folder away to begin a new cluster: stop all servers, empty their data folders, start the "
      "controller, create the namespaces again, start servers and clients. An older copy of the "
      "folder would use view numbers again: only with every server stopped and its data folder "
      "empty",
      folder, what);
}

rocksdb::Options MakeOptions(bool create) {
  rocksdb::Options options;
  SetCommonRocksDbOptions("mp_controller", "store", &options);
  options.create_if_missing = create;
  // A record torn by a crash was never acknowledged; damage before the end is refused.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.write_buffer_size = 4 << 20;
  options.max_total_wal_size = 16 << 20;
  options.max_open_files = 64;
  return options;
}

rocksdb::WriteOptions Synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

// What puts the keys of `batch` back to what they are in `db`.
rocksdb::Status Undo(rocksdb::DB* db, const rocksdb::WriteBatch& batch, rocksdb::WriteBatch* undo) {
  class Keys final : public rocksdb::WriteBatch::Handler {
   public:
    void Put(const rocksdb::Slice& key, const rocksdb::Slice& /*value*/) override {
      keys.push_back(key.ToString());
    }
    void Delete(const rocksdb::Slice& key) override { keys.push_back(key.ToString()); }
    std::vector<std::string> keys;
  } touched;
  rocksdb::Status status = batch.Iterate(&touched);
  for (const std::string& key : touched.keys) {
    std::string value;
    if (status.ok()) status = db->Get(rocksdb::ReadOptions(), key, &value);
    if (status.ok()) status = undo->Put(key, value);
    if (status.IsNotFound()) status = undo->Delete(key);
  }
  return status;
}

// Makes `path` with kMarkerText, durable with its folder entry.
Status WriteMarker(const std::string& folder, const std::string& path) {
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = file >= 0 && dir >= 0 &&
                    ::write(file, kMarkerText.data(), kMarkerText.size()) ==
                        static_cast<ssize_t>(kMarkerText.size()) &&
                    ::fsync(file) == 0 && ::fsync(dir) == 0;
  if (file >= 0) ::close(file);
  if (dir >= 0) ::close(dir);
  if (done) return OkStatus();
  return Error(StatusCode::kUnavailable, "{}: cannot be written", path);
}

// What RocksDB says when a store does not open, as an operator needs it.
Status OpenError(const std::string& folder, const rocksdb::Status& status) {
  const std::string text = status.ToString();
  if (text.find("LOCK") != std::string::npos || text.find("lock hold") != std::string::npos) {
    return Error(StatusCode::kFailedPrecondition,
                 "another mp-controller uses {}: stop it, or give this one another data_dir ({})",
                 folder, text);
  }
  if (status.IsNoSpace()) {
    return Error(StatusCode::kUnavailable, "no space for the store in {}: {}", folder, text);
  }
  return Damaged(folder, text);
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

}  // namespace

struct ControllerStore::Impl {
  rocksdb::Status OpenDatabase(bool first);
  Status Write(rocksdb::WriteBatch* batch);
  Status WriteError(const rocksdb::Status& status) const;
  Status Mend();
  static void PutCounter(rocksdb::WriteBatch* batch, std::string_view key, uint64_t value) {
    batch->Put(ToSlice(key), std::to_string(value));
  }

  std::string folder;
  std::unique_ptr<rocksdb::DB> db;
  std::deque<std::string> view_keys;  // oldest first, at most kViewsKept + 1
  // Set by a write that failed, and may be there or not: what makes sure that it is not.
  std::optional<rocksdb::WriteBatch> undo;
  TimePoint mend_next{};
  Duration mend_after{};
};

rocksdb::Status ControllerStore::Impl::OpenDatabase(bool first) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(MakeOptions(first), fmt::format("{}/{}", folder, kDatabaseName), &opened);
  db.reset(opened);
  return status;
}

Status ControllerStore::Impl::WriteError(const rocksdb::Status& status) const {
  return Error(StatusCode::kUnavailable, "the controller's store in {} cannot be written: {}",
               folder, status.ToString());
}

Status ControllerStore::Impl::Write(rocksdb::WriteBatch* batch) {
  if (undo) EMS_RETURN_IF_ERROR(Mend());
  // Before the write: later the disk may refuse to be read, too.
  rocksdb::WriteBatch back;
  rocksdb::Status status = Undo(db.get(), *batch, &back);
  if (!status.ok()) return WriteError(status);
  status = db->Write(Synced(), batch);
  if (status.ok()) return OkStatus();
  undo = std::move(back);
  mend_after = kMendEvery;
  mend_next = Clock::System().Now() + mend_after;
  return WriteError(status);
}

// Opens the database anew and takes the write that failed back: its caller was told that it did not
// happen, and has given its numbers to others since.
Status ControllerStore::Impl::Mend() {
  if (Clock::System().Now() < mend_next)
    return WriteError(rocksdb::Status::IOError("a write has failed; it is tried again soon"));
  mend_after = std::min(2 * mend_after, kMendEveryMax);
  mend_next = Clock::System().Now() + mend_after;
  db.reset();
  RemoveRocksDbDrafts(fmt::format("{}/{}", folder, kDatabaseName));
  rocksdb::Status status = OpenDatabase(false);
  if (status.ok()) status = db->Write(Synced(), &*undo);
  if (!status.ok()) return WriteError(status);
  undo.reset();
  EMS_LOG(kInfo, "mp_controller", "the store in {} can be written again", folder);
  return OkStatus();
}

ControllerStore::ControllerStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControllerStore::~ControllerStore() = default;

Result<std::unique_ptr<ControllerStore>> ControllerStore::Open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return Error(StatusCode::kUnavailable, "data_dir {} cannot be made: {}", folder,
                 error ? error.message() : "it is a file");
  }
  if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Error(StatusCode::kUnavailable, "data_dir {} is not writable for this user", folder);
  }
  const std::string marker = fmt::format("{}/{}", folder, kMarkerName);
  const bool first = !std::filesystem::exists(marker, error);
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  // RocksDB would make it, too, but first warn that it is not there.
  if (first) std::filesystem::create_directory(fmt::format("{}/{}", folder, kDatabaseName), error);
  const rocksdb::Status status = impl->OpenDatabase(first);
  if (!status.ok()) return OpenError(folder, status);
  if (first) EMS_RETURN_IF_ERROR(WriteMarker(folder, marker));
  return std::unique_ptr<ControllerStore>(new ControllerStore(std::move(impl)));  // NOLINT: private
}

Result<StoredState> ControllerStore::Load() {
  StoredState state;
  impl_->view_keys.clear();
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  const std::unique_ptr<rocksdb::Iterator> it(impl_->db->NewIterator(options));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const std::string_view key(it->key().data(), it->key().size());
    const Status status =
        TakeRecord(key, std::string_view(it->value().data(), it->value().size()), &state);
    if (!status.ok()) return Damaged(impl_->folder, Message(status));
    if (key.starts_with(kViewPrefix)) impl_->view_keys.emplace_back(key);
  }
  if (!it->status().ok()) return Damaged(impl_->folder, it->status().ToString());
  if (state.view != nullptr &&
      (state.view->version().term() > state.term || state.view->version().epoch() > state.epoch)) {
    return Damaged(impl_->folder, "a view is newer than the term or epoch counter");
  }
  return state;
}

Status ControllerStore::PutTerm(uint64_t term) {
  rocksdb::WriteBatch batch;
  Impl::PutCounter(&batch, kTermKey, term);
  return impl_->Write(&batch);
}

Status ControllerStore::PutView(const DhtView& view) {
  v1::View proto;
  view.ToProto(&proto);
  const std::string key = ViewKey(view.version());
  rocksdb::WriteBatch batch;
  batch.Put(key, proto.SerializeAsString());
  Impl::PutCounter(&batch, kEpochKey, view.version().epoch());
  const bool full = impl_->view_keys.size() >= kViewsKept;
  if (full) batch.Delete(impl_->view_keys.front());
  EMS_RETURN_IF_ERROR(impl_->Write(&batch));
  if (full) impl_->view_keys.pop_front();
  impl_->view_keys.push_back(key);
  return OkStatus();
}

Status ControllerStore::PutNode(const StoredNode& node, uint32_t next_node_id) {
  v1::Node proto;
  proto.set_id(node.id.value());
  proto.set_name(node.name);
  rocksdb::WriteBatch batch;
  batch.Put(fmt::format("{}{}", kNodePrefix, node.name), proto.SerializeAsString());
  Impl::PutCounter(&batch, kNextNodeKey, next_node_id);
  return impl_->Write(&batch);
}

Status ControllerStore::DeleteNode(const std::string& name) {
  rocksdb::WriteBatch batch;
  batch.Delete(fmt::format("{}{}", kNodePrefix, name));
  return impl_->Write(&batch);
}

Status ControllerStore::PutNamespace(const NamespaceChange& change) {
  rocksdb::WriteBatch batch;
  if (change.deleted) {
    batch.Delete(NamespaceKey(change.info.ref.id));
  } else {
    v1::Namespace proto;
    ToProto(change.info, &proto);
    batch.Put(NamespaceKey(change.info.ref.id), proto.SerializeAsString());
  }
  Impl::PutCounter(&batch, kNamespacesVersionKey, change.version);
  Impl::PutCounter(&batch, kNextNamespaceKey, change.next_id);
  return impl_->Write(&batch);
}

}  // namespace ems::controller
