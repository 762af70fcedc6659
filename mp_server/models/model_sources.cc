#include "mp_server/models/model_sources.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "common/check.h"
#include "model_files/source/credentials_file.h"
#include "model_files/source/open_source.h"
#include "model_files/source/source_url.h"

namespace ems::server {
namespace {

constexpr size_t kSourcesMax = 64;  // that nobody reads from
constexpr uint32_t kStreams = 2;

// Whoever reaches the controller names sources: not every folder of this machine is meant.
Status CheckFolder(const std::string& root, const std::string& folder) {
  if (root.empty()) {
    return Error(StatusCode::kPermissionDenied,
                 "{}: this server reads no folders of its machine; set models.file_root to one "
                 "that it may read",
                 folder);
  }
  std::error_code error;
  const auto real = std::filesystem::weakly_canonical(folder, error);
  const auto real_root = std::filesystem::weakly_canonical(root, error);
  const auto [end, at] =
      std::mismatch(real_root.begin(), real_root.end(), real.begin(), real.end());
  if (!error && end == real_root.end()) return OkStatus();
  return Error(StatusCode::kPermissionDenied, "{}: not below models.file_root, which is {}", folder,
               root);
}

}  // namespace

Result<std::shared_ptr<model::WeightSource>> ModelSources::Open(const model::ManifestSource& wanted,
                                                                uint32_t stream) {
  EMS_CHECK(stream < kStreams, "stream {} of {}", stream, kStreams);
  const Key key = KeyOf(wanted, stream);
  auto flag = std::make_shared<StopFlag>();
  {
    auto locked = state_.Lock();
    const auto it = locked->opened.find(key);
    if (it != locked->opened.end() && it->second.source != nullptr) return it->second.source;
    if (it != locked->opened.end()) flag = it->second.stop;
  }
  EMS_ASSIGN_OR_RETURN(const model::SourceUrl url, model::ParseSourceUrl(wanted.url));
  if (url.kind == model::SourceUrl::Kind::kFile)
    EMS_RETURN_IF_ERROR(CheckFolder(options_.file_root, url.folder));
  model::SourceSpec spec;
  spec.url = wanted.url;
  spec.bytes_per_s_max = wanted.bytes_per_s_max;
  if (wanted.first_read != model::FirstRead::kOnce && spec.bytes_per_s_max > 1)
    spec.bytes_per_s_max /= kStreams;
  spec.connections_max = options_.connections_max;
  spec.stop = flag;
  spec.ca_file = options_.ca_file;
  if (!wanted.credentials.empty()) {
    EMS_ASSIGN_OR_RETURN(spec.credentials,
                         model::ReadCredentials(options_.credentials_file, wanted.credentials));
  }
  EMS_ASSIGN_OR_RETURN(std::shared_ptr<model::WeightSource> made, model::OpenSource(spec));
  auto locked = state_.Lock();
  // Also a flag of one that was dropped meanwhile: a source with it would never read.
  if (locked->closed || flag->IsSet()) return Error(StatusCode::kCancelled, "stopping");
  // A worker that reads holds it, too.
  if (locked->opened.size() >= kSourcesMax) {
    std::erase_if(locked->opened,
                  [](const auto& one) { return one.second.source.use_count() <= 1; });
  }
  Opened& opened = locked->opened[key];
  if (opened.source == nullptr) opened = {std::move(made), flag};
  return opened.source;
}

uint64_t ModelSources::BytesRead(const model::ManifestSource& source) {
  std::vector<std::shared_ptr<model::WeightSource>> streams;
  {
    auto locked = state_.Lock();
    for (uint32_t stream = 0; stream < kStreams; ++stream) {
      const auto it = locked->opened.find(KeyOf(source, stream));
      if (it != locked->opened.end() && it->second.source != nullptr)
        streams.push_back(it->second.source);
    }
  }
  uint64_t bytes = 0;
  for (const auto& stream : streams) bytes += stream->counters().bytes_read;
  return bytes;
}

void ModelSources::Forget(const model::ManifestSource& source) {
  std::vector<std::shared_ptr<model::WeightSource>> last;  // end after the lock
  auto locked = state_.Lock();
  for (uint32_t stream = 0; stream < kStreams; ++stream) {
    const auto it = locked->opened.find(KeyOf(source, stream));
    if (it != locked->opened.end()) last.push_back(std::move(it->second.source));
  }
  locked.Unlock();
}

void ModelSources::Drop(const std::vector<model::ManifestSource>& gone,
                        const std::vector<model::ManifestSource>& wanted) {
  std::set<Key> unused;
  for (uint32_t stream = 0; stream < kStreams; ++stream) {
    for (const model::ManifestSource& source : gone) unused.insert(KeyOf(source, stream));
    for (const model::ManifestSource& source : wanted) unused.erase(KeyOf(source, stream));
  }
  auto locked = state_.Lock();
  for (const Key& key : unused) {
    const auto it = locked->opened.find(key);
    if (it == locked->opened.end()) continue;
    it->second.stop->Set();
    locked->opened.erase(it);
  }
}

void ModelSources::Close() {
  auto locked = state_.Lock();
  locked->closed = true;
  for (const auto& [key, opened] : locked->opened) opened.stop->Set();
}

}  // namespace ems::server
