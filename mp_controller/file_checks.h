#pragma once
// Whether the files of one version are what their source says: how far each file's sum has been
// computed, by the servers that keep its blocks, one after the other.
//
// A server adds its block to what has come of the file before it and tells the new state; whoever
// keeps the next block goes on with that. So no block is sent anywhere for it, and nobody is in
// charge who could die: the owner of the next block is. At the end the sum is compared. If it is
// another one, a new round begins, for which all of the file is read anew from the source, until
// that has been in vain kReadsMax times.
// Invariant: the digests of a file's blocks leave this class only when bytes with exactly these
// digests have been found to have the sum. Bound: 32 bytes a block, a state a file.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "ems_model/format/file_sum.h"
#include "ems_model/format/manifest.h"

namespace ems::v1 {
class FileCheck;
class FollowChecksReply;
class ReportCheckRequest;
}  // namespace ems::v1

namespace ems::controller {

// Threading: one thread.
class FileChecks final {
 public:
  static constexpr uint32_t kReadsMax = model::kFileReadsMax;
  // A file that was given up is tried again by itself so much later, then after twice as long; for
  // versions that are pinned.
  static constexpr Duration kRetryFirst = std::chrono::seconds(10);
  static constexpr Duration kRetryMost = std::chrono::minutes(2);
  static constexpr uint64_t kReplyBytesMax = 8 * kMiB;  // far below what clients take

  // `started` differs for each start of the controller: a number above all those that earlier ones
  // have given to changes. `manifest` must outlive this.
  FileChecks(uint32_t model_id, const model::Manifest& manifest, uint64_t started);

  // The digests of all of a file's blocks are known: it has been checked, perhaps by an earlier
  // controller. `number`, here and below: that of the list of changes, from now on.
  void Known(uint32_t file, uint64_t number);
  // Whether digests of the file's blocks are to wait here.
  bool Pending(uint32_t file) const;
  bool all_checked() const { return pending_ == 0; }
  // Of files with a sum: how much has been added up.
  uint64_t checked_bytes() const { return checked_bytes_; }
  // Why a file is given up: kDataLoss, from the step that has found it out to Again or Retry. OK:
  // none is. Cost: O(1) if none is.
  Status damaged() const;

  struct Step {
    bool finished = false;  // the sum is what it should be: take the digests, then call Known
    uint32_t file = 0;
  };
  // A server has gone on. One that is late, or went on with something else, changes nothing.
  // Errors: kNotFound  no such file with a sum    kInvalidArgument    kUnimplemented  no MD5 here
  Result<Step> Take(const v1::ReportCheckRequest& request, uint64_t number, TimePoint now);
  // Of a finished file: of its blocks from `first_block` on, in order.
  const std::vector<model::BlockDigest>& digests(uint32_t file) const;
  uint32_t first_block(uint32_t file) const;

  // A new job: files that were given up are read again, and counted anew. True if any was.
  bool Again(uint64_t number);
  // A pinned version without a job: the same for files whose time has come.
  bool Retry(uint64_t number, TimePoint now);

  // What has changed since `since`, or all with 0, of files `from` and later; true if there is
  // anything. `digests`: with those of blocks that have been added, 32 bytes each. `room`: bytes
  // that the answer may still have. If that is not enough, it says what comes next.
  bool Fill(uint64_t since, uint32_t from, bool digests, uint64_t* room,
            v1::FollowChecksReply* reply) const;
  // Errors: kNotFound
  Status Fill(uint32_t file, v1::FileCheck* out) const;

 private:
  struct File {
    model::FileSum sum;
    uint32_t first = 0, end = 0;  // blocks
    uint64_t round = 1;
    uint32_t next = 0;
    std::string state;                        // before `next`
    std::vector<model::BlockDigest> digests;  // of those before `next`
    uint32_t reads = 0;                       // in vain
    uint32_t times_stopped = 0;
    TimePoint retry_at{};
    bool checked = false;
    Status damaged;        // it was given up
    uint64_t changed = 0;  // number of the list of changes
  };
  void Changed(uint32_t index, uint64_t number, File* file);
  uint64_t BytesBefore(uint32_t file, uint32_t next) const;
  void GoTo(uint32_t next, uint32_t index, File* file);
  void Restart(uint32_t index, File* file);
  void Fill(uint32_t index, const File& file, v1::FileCheck* out) const;
  Result<std::vector<model::BlockDigest>> DigestsOf(const v1::ReportCheckRequest& request,
                                                    const File& file) const;

  const uint32_t model_id_;
  const model::Manifest& manifest_;
  const uint64_t started_;
  std::map<uint32_t, File> files_;                     // those with a sum
  std::set<std::pair<uint64_t, uint32_t>> by_change_;  // {changed, index} of each
  size_t pending_ = 0, stopped_ = 0;
  uint64_t checked_bytes_ = 0;  // of all files
};

}  // namespace ems::controller
