#include "mp_controller/file_checks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/logging.h"
#include "proto/model.pb.h"

namespace ems::controller {

using model::BlockDigest;
using model::FileHasher;

namespace {

constexpr uint64_t kFieldBytes = 8;  // what a file's length takes in an answer, at most

}  // namespace

FileChecks::FileChecks(uint32_t model_id, const model::Manifest& manifest, uint64_t started)
    : model_id_(model_id), manifest_(manifest), started_(started) {
  for (uint32_t block = 0; block < manifest.blocks.size(); ++block) {
    const uint32_t index = manifest.blocks[block].file;
    const model::ManifestFile& of = manifest.files[index];
    if (of.sum.empty()) continue;
    auto sum = model::ParseFileSum(of.sum, of.bytes);
    if (!sum.ok()) continue;  // CheckManifest has seen to that
    const auto [at, made] = files_.try_emplace(index);
    File& file = at->second;
    file.end = block + 1;
    if (!made) continue;
    file.sum = *std::move(sum);
    file.first = file.next = block;
    Changed(index, started, &file);
    Restart(index, &file);
    ++pending_;
  }
}

void FileChecks::Changed(uint32_t index, uint64_t number, File* file) {
  by_change_.erase({file->changed, index});
  file->changed = number;
  by_change_.emplace(number, index);
}

uint64_t FileChecks::BytesBefore(uint32_t index, uint32_t next) const {
  const bool within = next < manifest_.blocks.size() && manifest_.blocks[next].file == index;
  return within ? manifest_.blocks[next].offset : manifest_.files[index].bytes;
}

void FileChecks::GoTo(uint32_t next, uint32_t index, File* file) {
  checked_bytes_ -= BytesBefore(index, file->next);
  checked_bytes_ += BytesBefore(index, next);
  file->next = next;
}

void FileChecks::Restart(uint32_t index, File* file) {
  GoTo(file->first, index, file);
  file->state = FileHasher(file->sum).Save();
  file->digests.clear();
}

void FileChecks::Known(uint32_t index, uint64_t number) {
  const auto at = files_.find(index);
  if (at == files_.end() || at->second.checked) return;
  File& file = at->second;
  file.checked = true;
  Changed(index, number, &file);
  if (!std::exchange(file.damaged, OkStatus()).ok()) --stopped_;
  GoTo(file.end, index, &file);
  file.state.clear();
  file.digests = {};
  --pending_;
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

Result<std::vector<BlockDigest>> FileChecks::DigestsOf(const v1::ReportCheckRequest& request,
                                                       const File& file) const {
  const size_t count = request.digests().size() / sizeof(BlockDigest);
  if (count == 0 || count * sizeof(BlockDigest) != request.digests().size() ||
      count > file.end - file.next) {
    return Error(StatusCode::kInvalidArgument, "{} bytes of digests, of {} blocks at most",
                 request.digests().size(), file.end - file.next);
  }
  std::vector<BlockDigest> digests(count);
  std::memcpy(digests.data(), request.digests().data(), request.digests().size());
  return digests;
}

Result<FileChecks::Step> FileChecks::Take(const v1::ReportCheckRequest& request, uint64_t number,
                                          TimePoint now) {
  const auto at = files_.find(request.file());
  if (at == files_.end()) return Error(StatusCode::kNotFound, "file {} has no sum", request.file());
  File& file = at->second;
  Step step{.file = request.file()};
  if (request.started() != started_ || request.round() != file.round ||
      request.first() != file.next || file.checked || !file.damaged.ok())
    return step;
  EMS_RETURN_IF_ERROR(FileHasher::Offered());
  EMS_ASSIGN_OR_RETURN(const std::vector<BlockDigest> digests, DigestsOf(request, file));
  const uint32_t next = file.next + static_cast<uint32_t>(digests.size());
  FileHasher hasher(file.sum);
  EMS_RETURN_IF_ERROR(hasher.Restore(request.state(), BytesBefore(request.file(), next)));
  Changed(request.file(), number, &file);
  file.digests.resize(file.next - file.first);  // without those that could not be stored last time
  file.digests.insert(file.digests.end(), digests.begin(), digests.end());
  if (next != file.end) {
    GoTo(next, request.file(), &file);
    file.state = request.state();
    return step;
  }
  const std::string found = hasher.Finish();
  if (found == file.sum.hex) {
    step.finished = true;
    return step;
  }
  ++file.round;
  ++file.reads;
  Restart(request.file(), &file);
  const model::ManifestFile& of = manifest_.files[request.file()];
  Status why = Error(
      StatusCode::kDataLoss,
      "{}: damaged at the source or on the way: what was read has the MD5 {}, the source says {} "
      "(read {} times in vain); if this store's entity tags are something else, add it with "
      "--ignore-etags",
      of.path, found, file.sum.hex, file.reads);
  EMS_LOG(kWarn, "mp_controller", "model={} version={}: {}", manifest_.model, manifest_.version,
          Message(why));
  if (file.reads < kReadsMax) return step;
  file.damaged = std::move(why);
  ++stopped_;
  file.retry_at =
      now + std::min<Duration>(kRetryMost, kRetryFirst * (1 << std::min(file.times_stopped, 4U)));
  ++file.times_stopped;
  return step;
}

const std::vector<BlockDigest>& FileChecks::digests(uint32_t file) const {
  return files_.at(file).digests;
}

uint32_t FileChecks::first_block(uint32_t file) const { return files_.at(file).first; }

bool FileChecks::Again(uint64_t number) {
  bool any = false;
  for (auto& [index, file] : files_) {
    file.reads = 0;
    if (std::exchange(file.damaged, OkStatus()).ok()) continue;
    --stopped_;
    Changed(index, number, &file);
    any = true;
  }
  return any;
}

bool FileChecks::Retry(uint64_t number, TimePoint now) {
  bool any = false;
  for (auto& [index, file] : files_) {
    if (file.damaged.ok() || now < file.retry_at) continue;
    file.damaged = OkStatus();
    --stopped_;
    file.reads = kReadsMax - 1;  // one try at a time
    Changed(index, number, &file);
    any = true;
  }
  return any;
}

void FileChecks::Fill(uint32_t index, const File& file, v1::FileCheck* out) const {
  out->set_model_id(model_id_);
  out->set_file(index);
  out->set_started(started_);
  out->set_round(file.round);
  out->set_next(file.next);
  out->set_state(file.state);
  out->set_checked(file.checked);
  out->set_stopped(!file.damaged.ok());
  out->set_number(file.changed);
}

bool FileChecks::Fill(uint64_t since, uint32_t from, bool digests, uint64_t* room,
                      v1::FollowChecksReply* reply) const {
  std::vector<uint32_t> changed;
  for (auto at = by_change_.lower_bound({since + 1, 0}); at != by_change_.end(); ++at) {
    if (at->second >= from) changed.push_back(at->second);
  }
  std::ranges::sort(changed);
  for (const uint32_t index : changed) {
    const File& file = files_.at(index);
    v1::FileCheck out;
    Fill(index, file, &out);
    // They spare reads: without the last ones of a file of very many, some blocks are read again.
    const size_t most = digests ? kReplyBytesMax / 2 / sizeof(BlockDigest) : 0;
    for (size_t i = 0; i < std::min(most, file.digests.size()); ++i)
      out.mutable_digests()->append(AsText(file.digests[i]));
    const uint64_t bytes = out.ByteSizeLong() + kFieldBytes;
    if (bytes > *room) {
      reply->set_next_model(model_id_);
      reply->set_next_file(index);
      return true;
    }
    *room -= bytes;
    *reply->add_files() = std::move(out);
  }
  return !changed.empty();
}

Status FileChecks::Fill(uint32_t index, v1::FileCheck* out) const {
  const auto at = files_.find(index);
  if (at == files_.end()) return Error(StatusCode::kNotFound, "file {} has no sum", index);
  Fill(index, at->second, out);
  return OkStatus();
}

}  // namespace ems::controller
