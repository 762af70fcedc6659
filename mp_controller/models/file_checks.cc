#include "mp_controller/models/file_checks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "proto/model.pb.h"

namespace ems::controller {

using model::BlockDigest;

FileChecks::FileChecks(const model::Manifest& manifest, uint64_t log)
    : manifest_(manifest), log_id_(log) {
  for (uint32_t block = 0; block < manifest.blocks.size(); ++block) {
    const uint32_t index = manifest.blocks[block].file;
    EMS_CHECK(index < manifest.files.size(), "block {} of file {} of {}", block, index,
              manifest.files.size());
    const model::ManifestFile& of = manifest.files[index];
    if (of.sum.empty()) continue;
    const auto [at, made] = files_.try_emplace(index);
    at->second.end = block + 1;
    if (!made) continue;
    auto sum = model::ParseFileSum(of.sum, of.bytes);
    EMS_CHECK(sum.ok(), "a manifest that was checked: {}", Message(sum.status()));
    at->second.sum = *std::move(sum);
    at->second.first = block;
    ++pending_;
  }
  if (pending_ > 0) digests_.resize(manifest.blocks.size());
}

void FileChecks::Known(uint32_t index) {
  const auto at = files_.find(index);
  if (at == files_.end() || std::exchange(at->second.checked, true)) return;
  File& file = at->second;
  EMS_CHECK(pending_ > 0, "file {} is compared, and none was left", index);
  if (!std::exchange(file.damaged, OkStatus()).ok()) --stopped_;
  checked_bytes_ += manifest_.files[index].bytes;
  EMS_CHECK(file.end <= digests_.size(), "blocks to {} of {}", file.end, digests_.size());
  for (uint32_t block = file.first; block < file.end; ++block) digests_[block].reset();
  if (--pending_ > 0) return;
  digests_ = {};
  log_ = {};
}

bool FileChecks::Pending(uint32_t file) const {
  const auto at = files_.find(file);
  return at != files_.end() && !at->second.checked;
}

Status FileChecks::damaged() const {
  if (stopped_ == 0) return OkStatus();
  return std::ranges::find_if(files_, [](const auto& one) { return !one.second.damaged.ok(); })
      ->second.damaged;
}

void FileChecks::Tell(uint32_t block, const std::optional<BlockDigest>& digest) {
  EMS_CHECK(block < digests_.size(), "block {} of {}", block, digests_.size());
  if (std::exchange(digests_[block], digest) == digest) return;
  if (log_.size() < 2 * digests_.size() + kLogRoom) return log_.push_back(block);
  // Another log, of all blocks as they are.
  ++log_id_;
  log_.clear();
  for (uint32_t each = 0; each < digests_.size(); ++each) {
    if (Pending(manifest_.blocks[each].file)) log_.push_back(each);
  }
}

void FileChecks::Drop(const File& file) {
  for (uint32_t block = file.first; block < file.end; ++block) Tell(block, std::nullopt);
}

Result<bool> FileChecks::Take(const v1::ReportSumRequest& request, TimePoint now) {
  const auto at = files_.find(request.file());
  if (at == files_.end()) return Error(StatusCode::kNotFound, "file {} has no sum", request.file());
  File& file = at->second;
  const std::string& digests = request.digests();
  if (digests.size() != (file.end - file.first) * sizeof(BlockDigest)) {
    return Error(StatusCode::kInvalidArgument, "{} bytes of digests, of {} blocks", digests.size(),
                 file.end - file.first);
  }
  if (file.checked) return false;
  if (request.sum() == file.sum.hex) return true;
  if (!file.damaged.ok()) return false;
  for (uint32_t block = file.first; block < file.end; ++block) {
    const std::string_view added =
        std::string_view(digests).substr((block - file.first) * sizeof(BlockDigest));
    if (digests_[block] && added.starts_with(AsText(*digests_[block]))) continue;
    return Error(StatusCode::kFailedPrecondition,
                 "block {} of {} is not known as what was added up", block,
                 manifest_.files[request.file()].path);
  }
  ++file.reads;
  const model::ManifestFile& of = manifest_.files[request.file()];
  Status why = Error(
      StatusCode::kDataLoss,
      "{}: damaged at the source or on the way: what was read has the MD5 {}, the source says {} "
      "(read {} times in vain); if this store's entity tags are something else, add it with "
      "--ignore-etags",
      of.path, Printable(request.sum(), 64), file.sum.hex, file.reads);
  EMS_LOG(kWarn, "mp_controller", "model={} version={}: {}", manifest_.model, manifest_.version,
          Message(why));
  if (file.reads < kReadsMax) {
    Drop(file);
    return false;
  }
  file.damaged = std::move(why);
  ++stopped_;
  file.retry_at =
      now + std::min<Duration>(kRetryMost, kRetryFirst * (1 << std::min(file.times_stopped, 4U)));
  ++file.times_stopped;
  return false;
}

// Only now: by the time that it is tried again the source may have other bytes.
void FileChecks::GoOn(File* file) {
  EMS_CHECK(stopped_ > 0, "a file continues, and none was abandoned");
  file->damaged = OkStatus();
  --stopped_;
  Drop(*file);
}

void FileChecks::Again() {
  for (auto& [index, file] : files_) {
    file.reads = 0;
    if (!file.damaged.ok()) GoOn(&file);
  }
}

void FileChecks::Retry(TimePoint now) {
  if (stopped_ == 0) return;
  for (auto& [index, file] : files_) {
    if (file.damaged.ok() || now < file.retry_at) continue;
    file.reads = kReadsMax - 1;  // one try at a time
    GoOn(&file);
  }
}

bool FileChecks::Fill(const v1::FollowUnverifiedRequest& request,
                      v1::FollowUnverifiedReply* reply) const {
  const size_t since =
      request.log() == log_id_ ? std::min<size_t>(request.since(), log_.size()) : 0;
  const size_t next = std::min<size_t>(log_.size(), since + kChangesMax);
  reply->set_log(log_id_);
  reply->set_next(static_cast<uint32_t>(next));
  for (size_t i = since; i < next; ++i) {
    const std::optional<BlockDigest>& digest = digests_[log_[i]];
    if (!Pending(manifest_.blocks[log_[i]].file)) continue;
    reply->add_blocks(log_[i]);
    reply->mutable_digests()->append(AsText(digest ? *digest : BlockDigest{}));
  }
  return next > since || request.log() != log_id_;
}

}  // namespace ems::controller
