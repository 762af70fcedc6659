#include "ems_model/internal/file_survey.h"

#include <utility>

#include "common/sha256.h"
#include "model_files/format/file_sum.h"

namespace ems::model::internal {

void FileSurvey::Begin() {
  auto files = files_.Lock();
  for (auto& [index, file] : *files) file.failed = OkStatus();
}

Status FileSurvey::GoesOn(const Load& load) {
  if (load.over()) return Error(StatusCode::kCancelled, "the load is over");
  if (load.deadline.Passed())
    return Error(StatusCode::kDeadlineExceeded, "out of time while files are compared");
  return OkStatus();
}

Result<BlockDigest> FileSurvey::DigestOf(uint32_t block, const Load& load) {
  const uint32_t index = manifest_->blocks[block].file;
  while (true) {
    EMS_RETURN_IF_ERROR(GoesOn(load));
    auto files = files_.Lock();
    File& file = (*files)[index];
    if (!file.digests.empty()) return file.digests.at(block);
    const bool may_pass = file.failed.code() == StatusCode::kUnavailable ||
                          file.failed.code() == StatusCode::kDeadlineExceeded;
    if (may_pass && Clock::System().Now() >= file.failed_at + kOutage) file.failed = OkStatus();
    if (!file.failed.ok()) return file.failed;
    if (!std::exchange(file.busy, true)) break;
    (void)files.WaitFor(done_, kLook, [&](auto& all) { return !all[index].busy; });
  }
  Result<Digests> read = Read(index, load);
  auto files = files_.Lock();
  File& file = (*files)[index];
  file.busy = false;
  done_.notify_all();
  file.failed_at = Clock::System().Now();
  if (!read.ok()) return file.failed = read.status();
  file.digests = *std::move(read);
  return file.digests.at(block);
}

Result<FileSurvey::Digests> FileSurvey::Read(uint32_t index, const Load& load) const {
  EMS_RETURN_IF_ERROR(FileHasher::Offered());
  const ManifestFile& file = manifest_->files[index];
  EMS_ASSIGN_OR_RETURN(const FileSum sum, ParseFileSum(file.sum, file.bytes));
  EMS_ASSIGN_OR_RETURN(WeightSource* const from, load.source());
  std::vector<std::byte> buffer;
  std::string found;
  for (uint32_t reads = 0; reads < kFileReadsMax; ++reads) {
    Digests digests;
    FileHasher hasher(sum);
    Sha256 sha256;
    for (uint32_t i = 0; i < manifest_->blocks.size(); ++i) {
      const ManifestBlock& block = manifest_->blocks[i];
      if (block.file != index) continue;
      EMS_RETURN_IF_ERROR(GoesOn(load));
      buffer.resize(block.bytes);
      load.source_bytes->fetch_add(block.bytes, std::memory_order_relaxed);
      EMS_RETURN_IF_ERROR(from->Read({.path = file.path, .bytes = file.bytes, .tag = file.tag},
                                     block.offset, buffer, load.deadline));
      hasher.Update(buffer);
      digests[i] = sha256.Digest(buffer);
    }
    found = hasher.Finish();
    if (found == sum.hex) return digests;
  }
  return Error(StatusCode::kDataLoss,
               "{}: damaged at the source or on the way: what was read has the MD5 {}, the source "
               "says {} (read {} times in vain)",
               file.path, found, sum.hex, kFileReadsMax);
}

}  // namespace ems::model::internal
