#pragma once
// What this server has to do for one version of a model: which blocks are its own, which of them
// are still to be brought into DRAM, and what the controller is to be told.
//
// A file that has a sum is added up besides, by the server that keeps its first block, whoever
// keeps the others (mp_controller/models/file_checks.h). Until that has been compared, a digest of
// its blocks is only what was read last, by any server; all of them are read again when the
// controller drops them. Invariant: a block is given out to one worker at a time, and in one job
// it is done once, unless its slot is lost meanwhile; a check is given blocks that have been read,
// so it waits for no pull. Bound: a byte and a digest a block; of a file that is added up another
// digest a block, and a sum's state.
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "model_files/format/file_sum.h"
#include "model_files/format/manifest.h"
#include "mp_server/models/orphaned_blocks.h"
#include "mp_server/store/object_store.h"

namespace ems::v1 {
class FollowUnverifiedReply;
class FollowUnverifiedRequest;
class ModelStatus;
class ReportPullRequest;
}  // namespace ems::v1

namespace ems::server {

// Threading: caller locks.
class ModelPull final {
 public:
  static constexpr Duration kNamespacePatience = std::chrono::seconds(5);
  static constexpr Duration kRetryFirst = std::chrono::seconds(10);
  static constexpr Duration kRetryMost = std::chrono::minutes(2);

  // A block to bring in.
  struct Task {
    uint32_t model_id = 0;
    uint64_t job = 0;
    uint32_t block = 0;
    SlotId slot;
    NamespaceRef ns;
    std::shared_ptr<const model::Manifest> manifest;
    std::optional<model::BlockDigest> digest;  // what it is, if that is known
    bool certain = true;                       // only bytes with this digest will do
    bool pin = false;                          // keep it from being evicted
    std::string origin;                        // of the version's source
  };
  // What came of it.
  struct Outcome {
    model::BlockDigest digest{};
    uint64_t source_bytes = 0;    // read from the source
    uint64_t promoted_bytes = 0;  // read from the SSD
    bool shared = false;          // read from the source, and there already
    ObjectPin pin;
  };

  // Blocks whose turn it is to be added to their file's sum, or the sum, which is to be told.
  struct CheckTask {
    uint32_t model_id = 0;
    uint32_t file = 0;
    uint64_t attempt = 0;                       // of the file
    uint32_t first = 0;                         // block
    std::vector<model::BlockDigest> digests;    // of it and those that follow
    std::shared_ptr<model::FileHasher> hasher;  // of all before it; this task's alone
    std::string sum;                            // not empty: of all of `digests`, to be told
    uint64_t manifest_checksum = 0;
    NamespaceRef ns;
    std::shared_ptr<const model::Manifest> manifest;
  };
  // What came of it.
  struct CheckOutcome {
    uint32_t added = 0;               // blocks, the first of the task
    std::optional<uint32_t> missing;  // the block after them is not there any more
    bool told = false;                // the sum was
    bool unknown = false;             // the controller knows other digests, or not all
  };
  static constexpr size_t kCheckBlocksMax = 64;  // of a task; and
  static constexpr uint64_t kCheckBytesMax = 64 * kMiB;

  ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest);

  uint32_t id() const { return id_; }
  // Who is asked for its bytes: host and port; empty: this machine's folders.
  const std::string& origin() const { return origin_; }
  uint64_t job() const { return job_; }
  bool running() const { return running_; }
  bool pinned() const { return pinned_; }
  uint32_t priority() const { return priority_; }
  const std::shared_ptr<const model::Manifest>& manifest() const { return manifest_; }

  // What the controller's list says. A new job starts from 0. The pins that are over, if it is not
  // pinned any more, are for the caller to drop, without a lock.
  std::vector<ObjectPin> Follow(const v1::ModelStatus& status);
  // A digest that the controller knows. It counts, whatever was read here: other bytes are read
  // anew.
  void Learn(uint32_t block, const model::BlockDigest& digest);
  // Which blocks are this server's under `view`; what is done of them stays done. Returns pins of
  // blocks that are not any more.
  std::vector<ObjectPin> SetOwned(ViewVersion view, NamespaceRef ns,
                                  const std::bitset<kSlotCount>& owned);
  // The store has dropped what was in slots that are not `kept`: blocks of theirs are to be done
  // again, also when the slots come back. What a worker is busy with may have been dropped, too.
  void LoseSlots(const std::bitset<kSlotCount>& kept);
  // Whether a block comes to this server by `owned` whose digest others may have told, and which is
  // not known here.
  bool LacksDigests(NamespaceRef ns, const std::bitset<kSlotCount>& owned) const;
  ViewVersion view() const { return view_; }
  NamespaceRef name_space() const { return ns_; }
  // Appends its blocks in these slots that may be here. Cost: O(blocks of this server).
  void NamesIn(const std::bitset<kSlotCount>& slots, std::vector<BlockName>* names) const;
  // Its namespace is not there. Nothing is given out until SetOwned; it is an error once that has
  // gone on for kNamespacePatience: a new one is heard of within less. Returns all pins, as there
  // is nothing left that they could keep.
  std::vector<ObjectPin> WithoutNamespace(TimePoint now);

  // The next block for a worker, in the order of the manifest; nothing: none is left, or the job
  // has failed.
  std::optional<Task> Next();
  // The same, of what is to be added to sums.
  std::optional<CheckTask> NextCheck();
  // A worker is done with it.
  void CheckEnded(const CheckTask& task, const CheckOutcome& outcome);
  // It cannot be done on this machine: ends the job, as Fail.
  void FailCheck(const CheckTask& task, const Status& why);
  // Whether there are files that no sum has confirmed, as far as this server knows.
  bool unverified() const { return unverified_ > 0; }
  // From where on to follow what others read of them, and how many digests have been learned.
  void FillFollow(v1::FollowUnverifiedRequest* request) const;
  // What others have read, or this server before it was restarted, and what is to be read again.
  // True if the controller has more digests that are certain, to be learned. `lost`: pins for the
  // caller to drop, without a lock.
  bool Hear(const v1::FollowUnverifiedReply& said, std::vector<ObjectPin>* lost);
  // That so many digests have been learned, of those that the controller of `log` has. Nothing
  // happens if another one has been heard since.
  void LearnedUpTo(uint64_t log, uint32_t count);
  // A worker is done with a task of Next. A task of a job that is over counts for what was learned.
  // Returns a pin that is not needed (any more), for the caller to drop, without a lock.
  ObjectPin Done(const Task& task, Outcome outcome);
  // The block is not here now: the view has changed, or is about to. It is to be done again.
  void GiveBack(const Task& task);
  // It cannot be had: ends the job.
  void Fail(const Task& task, const Status& why);
  // Called now and then. What is pinned is tried again kRetryFirst after it has failed, then after
  // twice as long, up to kRetryMost: each try may read blocks that there is no room for.
  void Retry(TimePoint now);
  const Status& error() const { return error_; }

  // Nothing is left to do under `view()`.
  bool finished() const { return view_ != ViewVersion() && done_ == owned_.size() && error_.ok(); }
  bool working() const { return running_ || pinned_; }
  // Something that the controller has not been told.
  bool has_news() const { return news_; }
  // What it is to be told, but for who tells it; at most 16,384 digests, then has_news() stays
  // true.
  void FillReport(v1::ReportPullRequest* report);
  // The report did not arrive: its digests are to go again.
  void ReportFailed(const v1::ReportPullRequest& report);

 private:
  // kLost: a worker is busy with it, and what it brings in may be dropped already.
  enum class State : uint8_t { kTodo, kBusy, kLost, kDone };
  // A file with a sum, and how far it is added up here.
  struct Check {
    uint32_t first = 0, end = 0;  // blocks
    uint32_t unverified = 0;      // of them
    uint64_t attempt = 0;
    std::vector<model::BlockDigest> added;
    std::shared_ptr<model::FileHasher> hasher;  // of those
    std::string sum;                            // of all of them
    bool told = false, busy = false;
  };
  bool IsCurrent(const Task& task) const { return task.job == job_; }
  bool IsCertain(uint32_t block) const;
  bool IsOwned(uint32_t block) const;
  SlotId SlotIn(NamespaceRef ns, uint32_t block) const;
  void SetDigest(uint32_t block, const std::optional<model::BlockDigest>& digest);
  // It is added up from its first block on.
  static void BeginAnew(Check* check);
  uint64_t AddedBytes() const;
  // What has been read of these blocks and is not certain.
  void TellAgain(uint32_t first, uint32_t end);
  // It is not done any more.
  void Undo(uint32_t block);

  const uint32_t id_;
  const std::shared_ptr<const model::Manifest> manifest_;
  const uint64_t manifest_checksum_;
  const std::string origin_;
  uint64_t job_ = 0;
  bool running_ = false;
  bool pinned_ = false;
  uint32_t priority_ = 0;
  ViewVersion view_;
  NamespaceRef ns_;
  std::optional<TimePoint> homeless_since_;                 // without its namespace
  std::vector<State> states_;                               // by block
  std::vector<std::optional<model::BlockDigest>> digests_;  // by block
  std::vector<uint32_t> owned_;                             // blocks of this server, in order
  size_t next_ = 0;          // of owned_, where to look for more to do
  size_t done_ = 0;          // of owned_
  uint64_t done_bytes_ = 0;  // of owned_
  uint64_t source_bytes_ = 0, promoted_bytes_ = 0, shared_bytes_ = 0;
  std::map<uint32_t, ObjectPin> pins_;  // by block
  std::vector<uint32_t> learned_;       // blocks whose digest is news
  std::vector<uint32_t> missing_;       // of others: to be told
  std::map<uint32_t, Check> checks_;    // by file; those with a sum
  size_t unverified_ = 0;               // of checks_
  uint64_t log_ = 0;                    // as v1::FollowUnverifiedReply, with the next two
  uint32_t log_next_ = 0, known_ = 0;
  std::vector<bool> certain_;  // by block: the controller knows its digest
  bool cannot_check_ = false;
  bool news_ = false;
  Status error_;
  std::optional<TimePoint> retry_at_;
  Duration retry_pause_ = kRetryFirst;
};

}  // namespace ems::server
