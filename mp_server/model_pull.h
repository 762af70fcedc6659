#pragma once
// What this server has to do for one version of a model: which blocks are its own, which of them
// are still to be brought into DRAM, and what the controller is to be told.
//
// Invariant: a block is given out to one worker at a time, and in one job and one view it is done
// once. Bound: a byte and a digest a block.
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
#include "mp_server/object_store.h"

namespace ems::v1 {
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
    std::optional<model::BlockDigest> digest;  // what it must be, if that is known
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

  ModelPull(uint32_t id, std::shared_ptr<const model::Manifest> manifest);

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
  // A digest that the controller knows. It counts, whatever was read here: other bytes are read
  // anew.
  void Learn(uint32_t block, const model::BlockDigest& digest);
  // Which blocks are this server's under `view`. Returns pins of blocks that are not any more.
  std::vector<ObjectPin> SetOwned(ViewVersion view, NamespaceRef ns,
                                  const std::bitset<kSlotCount>& owned);
  ViewVersion view() const { return view_; }
  NamespaceRef name_space() const { return ns_; }
  // Its namespace is not there. Nothing is given out until SetOwned; it is an error once that has
  // gone on for kNamespacePatience: a new one is heard of within less. Returns all pins, as there
  // is nothing left that they could keep.
  std::vector<ObjectPin> WithoutNamespace(TimePoint now);

  // The next block for a worker, in the order of the manifest; nothing: none is left, or the job
  // has failed.
  std::optional<Task> Next();
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
  bool IsCurrent(const Task& task) const { return task.job == job_; }

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
  bool news_ = false;
  Status error_;
  std::optional<TimePoint> retry_at_;
  Duration retry_pause_ = kRetryFirst;
};

}  // namespace ems::server
