#include "mp_controller/etcd/store_memory.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "common/bytes.h"

namespace ems::controller {
namespace {

constexpr std::string_view kName = "ETCD_STORE";
constexpr std::string_view kEmbeddedName = "EMS_CONTROLLER_STORE";  // rows/durable_rows.cc
constexpr std::string_view kWord = "cluster ";

std::string PathIn(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

}  // namespace

bool StoreMemory::IsIn(const std::string& data_dir) {
  std::error_code error;
  return std::filesystem::exists(PathIn(data_dir, kName), error);
}

Result<std::unique_ptr<StoreMemory>> StoreMemory::Open(const std::string& data_dir) {
  std::error_code error;
  std::filesystem::create_directories(data_dir, error);
  if (error || !std::filesystem::is_directory(data_dir, error)) {
    return Error(StatusCode::kUnavailable, "data_dir {} cannot be made: {}", data_dir,
                 error ? error.message() : "it is a file");
  }
  if (std::filesystem::exists(PathIn(data_dir, kEmbeddedName), error)) {
    return Error(StatusCode::kFailedPrecondition,
                 "data_dir {} has the store of a controller without etcd, which is not moved to "
                 "etcd by itself: leave etcd.endpoints out, or, for a new cluster, give this "
                 "controller an empty data_dir",
                 data_dir);
  }
  std::unique_ptr<StoreMemory> memory(new StoreMemory(data_dir));  // NOLINT: private
  EMS_ASSIGN_OR_RETURN(memory->changes_, ChangeNote::Open(PathIn(data_dir, "ETCD_CHANGES")));
  EMS_ASSIGN_OR_RETURN(memory->model_changes_,
                       ChangeNote::Open(PathIn(data_dir, "ETCD_MODEL_CHANGES")));
  if (IsIn(data_dir)) {
    std::ifstream file(PathIn(data_dir, kName));
    std::string line;
    std::getline(file, line);
    const auto cluster = line.starts_with(kWord) ? ParseCluster(line.substr(kWord.size()))
                                                 : std::optional<ClusterId>();
    if (!cluster.has_value()) {
      return Error(StatusCode::kDataLoss, "{}/{} is damaged: it says \"{}\", not which cluster",
                   data_dir, kName, Printable(line));
    }
    memory->cluster_ = *cluster;
  }
  return memory;
}

Status StoreMemory::CheckChanges(Rows rows, uint64_t changes) {
  const uint64_t noted = NoteOf(rows).last();
  if (changes >= noted) return OkStatus();
  return Error(StatusCode::kDataLoss,
               "the store in etcd has {} changes of {}, and this controller has seen {}: etcd was "
               "emptied, an older snapshot was put back, or etcd.endpoints or etcd.prefix are "
               "another cluster's. Nothing was changed. Put the right etcd back; or begin a new "
               "cluster: stop all servers and controllers, and empty their data folders",
               changes, rows == Rows::kCluster ? "the cluster" : "models", noted);
}

Status StoreMemory::CheckCluster(ClusterId cluster) {
  if (cluster_ == cluster || cluster == kNoCluster) return OkStatus();
  if (cluster_ != kNoCluster) {
    return Error(StatusCode::kFailedPrecondition,
                 "etcd has cluster {}, and data_dir {} belongs to cluster {}: correct "
                 "etcd.endpoints or etcd.prefix, or give this controller an empty data_dir",
                 ClusterText(cluster), folder_, ClusterText(cluster_));
  }
  const std::string next = PathIn(folder_, "ETCD_STORE.next");
  std::error_code error;
  {
    std::ofstream file(next, std::ios::trunc);
    file << kWord << ClusterText(cluster) << "\n";
    file.flush();
    if (!file.good()) return Error(StatusCode::kUnavailable, "{} cannot be written", next);
  }
  std::filesystem::rename(next, PathIn(folder_, kName), error);
  if (error) return Error(StatusCode::kUnavailable, "{}: {}", next, error.message());
  cluster_ = cluster;
  return OkStatus();
}

void StoreMemory::Note(Rows rows, uint64_t changes) {
  ChangeNote& note = NoteOf(rows);
  if (changes > note.last()) note.Set(changes);
}

}  // namespace ems::controller
