#pragma once
// Checks of one version's files against what their source says: digests of blocks that no sum has
// confirmed yet, and the results of the sums.
//
// Servers tell the digest of each block that they have read; the server that keeps a file's first
// block reads all of them, in order, and tells what they add up to. If it dies, the next owner of
// that block starts again. Another sum than the source's means damage: the file's digests are
// dropped, so all of it is read again, until that has been in vain kReadsMax times.
// Invariant: a digest of a file that is not compared goes to servers alone, never to a load. Bound:
// a digest and an optional word a block, and kLogRoom changes beyond that.
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "model_files/format/file_sum.h"
#include "model_files/format/manifest.h"

namespace ems::v1 {
class FollowUnverifiedReply;
class FollowUnverifiedRequest;
class ReportSumRequest;
}  // namespace ems::v1

namespace ems::controller {

// Threading: one thread.
class FileChecks final {
 public:
  static constexpr uint32_t kReadsMax = model::kFileReadsMax;
  // A file that was abandoned is tried again by itself so much later, then after twice as long; for
  // versions that are pinned.
  static constexpr Duration kRetryFirst = std::chrono::seconds(10);
  static constexpr Duration kRetryMost = std::chrono::minutes(2);
  static constexpr uint32_t kChangesMax = 16'384;  // of an answer
  static constexpr size_t kLogRoom = 4096;

  // `log` differs for each start of the controller. `manifest` must outlive this.
  FileChecks(const model::Manifest& manifest, uint64_t log);

  // The digests of all of a file's blocks are known: it has been compared, perhaps by an earlier
  // controller.
  void Known(uint32_t file);
  // Whether digests of the file's blocks are to wait here.
  bool Pending(uint32_t file) const;
  bool all_checked() const { return pending_ == 0; }
  uint64_t checked_bytes() const { return checked_bytes_; }  // of files that have a sum
  // Why a file is abandoned: kDataLoss, from the sum that has found it out to Again or Retry. OK:
  // none is. Cost: O(1) if none is.
  Status damaged() const;

  // What a block of a pending file was when it was read last; nothing: it is not there any more.
  void Tell(uint32_t block, const std::optional<model::BlockDigest>& digest);
  // What a file adds up to. True: it is what it should be, and the digests told with it are those
  // of its blocks: once they are stored, call Known. Errors: kFailedPrecondition  another sum, of
  // other bytes than those told last: nothing has changed, and once they are told it may be taken
  // again    kNotFound  no such file with a sum    kInvalidArgument
  Result<bool> Take(const v1::ReportSumRequest& request, TimePoint now);
  uint32_t first_block(uint32_t file) const { return files_.at(file).first; }

  // A new job: abandoned files are read again, and counted from 0.
  void Again();
  // A pinned version without a job: the same for files whose time has come.
  void Retry(TimePoint now);

  // What has changed since an answer before. True if there is anything.
  bool Fill(const v1::FollowUnverifiedRequest& request, v1::FollowUnverifiedReply* reply) const;

 private:
  struct File {
    model::FileSum sum;
    uint32_t first = 0, end = 0;  // blocks
    uint32_t reads = 0;           // in vain
    uint32_t times_stopped = 0;
    TimePoint retry_at{};
    bool checked = false;
    Status damaged;  // it was abandoned
  };
  // All of it is to be read again.
  void Drop(const File& file);
  void GoOn(File* file);

  const model::Manifest& manifest_;
  std::map<uint32_t, File> files_;                          // those with a sum
  std::vector<std::optional<model::BlockDigest>> digests_;  // by block; those told
  std::vector<uint32_t> log_;                               // blocks, as they changed
  uint64_t log_id_;
  size_t pending_ = 0, stopped_ = 0;
  uint64_t checked_bytes_ = 0;
};

}  // namespace ems::controller
