#pragma once
// What this server has to do for one version of a model: which blocks are its own, which of them
// are still to be brought into DRAM, and what the controller is to be told.
//
// Files that have a sum are added up besides, block by block, by the servers that keep the blocks
// (mp_controller/file_checks.h): here is what this server can go on with. Until a file is checked,
// a digest of its blocks is only what was read last; when its bytes turn out to be damaged, all of
// them are read anew, unless the file is given up: then once it is tried again.
// Invariant: a block is given out to one worker at a time, and in one job and one view it is done
// once; a check is given blocks that are here, so it waits for no pull. Bound: a byte and a digest
// a block, besides kDamagedMax digests of one that was damaged; a state a file.
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/status.h"
#include "ems_model/format/manifest.h"
#include "mp_server/found_blocks.h"
#include "mp_server/kept_blocks.h"
#include "mp_server/object_store.h"

namespace ems::v1 {
class FileCheck;
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
    uint32_t round = 0;                        // of reads of its file, of this server's count
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

  // Blocks of a file that are here, and whose turn it is to be added to its sum.
  struct CheckTask {
    uint32_t model_id = 0;
    uint32_t file = 0;
    uint64_t started = 0, round = 0;  // as v1::FileCheck
    uint32_t first = 0;
    std::string state;                        // of the sum before it
    std::vector<model::BlockDigest> digests;  // of it and those that follow
    NamespaceRef ns;
    std::shared_ptr<const model::Manifest> manifest;
    uint64_t BytesOf(uint32_t blocks) const;  // the first ones of it
  };
  static constexpr size_t kCheckBlocksMax = 64;  // of a task; and
  static constexpr uint64_t kCheckBytesMax = 64 * kMiB;
  static constexpr size_t kDamagedMax = 3;

  ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest);

  uint32_t id() const { return id_; }
  // Who is asked for its bytes: host and port; empty: this machine's folders.
  const std::string& origin() const { return origin_; }
  uint64_t job() const { return job_; }
  bool running() const { return running_; }
  bool pinned() const { return pinned_; }
  uint32_t priority() const { return priority_; }
  const std::shared_ptr<const model::Manifest>& manifest() const { return manifest_; }

  // What the controller's list says. A new job begins anew. The pins that are over, if it is not
  // pinned any more, are for the caller to drop, without a lock.
  std::vector<ObjectPin> Follow(const v1::ModelStatus& status);
  // What an earlier pull of the version had found, before Follow; and what this one has.
  void Recall(const std::vector<FoundBlocks::File>& files);
  std::vector<FoundBlocks::File> Found() const;
  // A digest that the controller knows. It counts, whatever was read here: other bytes are read
  // anew.
  void Learn(uint32_t block, const model::BlockDigest& digest);
  // Which blocks are this server's under `view`. Returns pins of blocks that are not any more.
  std::vector<ObjectPin> SetOwned(ViewVersion view, NamespaceRef ns,
                                  const std::bitset<kSlotCount>& owned);
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
  // A worker is done with it; `missing`: a block that was not here any more.
  void CheckEnded(const CheckTask& task, std::optional<uint32_t> missing);
  // It cannot be done on this machine: ends the job, as Fail.
  void FailCheck(const CheckTask& task, const Status& why);
  // How far a file is, unless something newer has been heard. True if it is checked now, so that
  // the controller has digests that are certain, to be learned. `lost`: pins for the caller to
  // drop, without a lock.
  bool FollowCheck(const v1::FileCheck& check, std::vector<ObjectPin>* lost);
  // How many digests have been learned, in the order in which `controller` (v1::FileCheck::started)
  // came to know them: so as not to learn all of them again after each file. 0: of none, or all are
  // to be learned, as no file is left after which what was missed could be.
  struct Learned {
    uint64_t controller = 0;
    uint32_t count = 0;
  };
  Learned learned_so_far() const { return checks() ? learned_so_far_ : Learned(); }
  // Nothing happens if another controller has been heard since.
  void LearnedUpTo(const Learned& learned);
  // Whether there are files to be checked.
  bool checks() const { return unchecked_ > 0; }
  // What was stored for it and turned out to be damaged, by now: known when the block's digest has
  // been learned. Not what was here before, nor what is another block of this version.
  std::vector<model::BlockDigest> TakeDamaged();
  // Blocks were stored for it that may turn out to be damaged.
  bool has_suspects() const { return !suspects_.empty(); }
  // Takes those out that are blocks of this version. In order, and so they stay. Cost: O(blocks).
  void Spare(std::vector<model::BlockDigest>* digests) const;
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
  enum class State : uint8_t { kTodo, kBusy, kDone };
  // How far a file with a sum is, as far as this server has heard.
  struct Check {
    uint32_t first = 0, end = 0;  // blocks
    uint64_t started = 0, round = 0, number = 0;
    uint64_t before = 0;  // `started` of the controller before this one
    uint32_t next = 0;
    std::string state;
    bool heard = false, busy = false, checked = false, stopped = false;
    uint32_t reads = 0;  // how often it was begun anew here
  };
  bool IsCurrent(const Task& task) const { return task.job == job_; }
  uint32_t RoundOf(uint32_t block) const;
  bool IsCertain(uint32_t block) const;
  bool IsDue(uint32_t block) const;
  // Bytes that were stored for it.
  void Suspect(uint32_t block, const model::BlockDigest& digest);
  // It is not done any more.
  void Undo(uint32_t block);
  void ReadAnew(Check* check, std::vector<ObjectPin>* lost);

  const uint32_t id_;
  const std::shared_ptr<const model::Manifest> manifest_;
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
  std::map<uint32_t, Check> checks_;    // by file; those with a sum
  size_t unchecked_ = 0;
  Learned learned_so_far_;
  std::vector<bool> certain_;  // by block: the controller knows its digest
  std::vector<bool> stored_;   // by block: its digest is of bytes that this pull has stored
  std::map<uint32_t, std::vector<model::BlockDigest>> suspects_;  // by block: stored before
  std::vector<model::BlockDigest> damaged_;                       // of them, what was
  bool cannot_check_ = false;
  bool news_ = false;
  Status error_;
  std::optional<TimePoint> retry_at_;
  Duration retry_pause_ = kRetryFirst;
};

}  // namespace ems::server
