#pragma once
// Which versions of which models there are, what they are made of, and how far the servers are with
// bringing them into the pool.
//
// A version's blocks get their digests as they are read from the source for the first time; those
// of a file with a sum once that has been found to be right (file_checks.h), all at once. A job
// (Prefetch) is over when every server of the view of the moment has done its part or failed, and
// at its deadline (pull_job.h); so a job outlives the death of a server and the restart of the
// controller. Invariant: versions, pins, jobs and digests are durable before they are answered or
// counted; an id and a job's number are used once. Bound: kModelsMax versions, kModelBlocksMax
// blocks of all.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "model_files/format/manifest.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/models/change_log.h"
#include "mp_controller/models/pull_job.h"
#include "mp_controller/publish/view_publisher.h"
#include "mp_controller/rows/row_store.h"

namespace ems::v1 {
class AddModelRequest;
class FollowUnverifiedReply;
class FollowUnverifiedRequest;
class GetDigestsReply;
class GetDigestsRequest;
class ListModelsReply;
class ListModelsRequest;
class ModelManifest;
class ModelRef;
class ModelStatus;
class PinModelRequest;
class PrefetchRequest;
class RemoveModelReply;
class ReportPullReply;
class ReportPullRequest;
class ReportSumReply;
class ReportSumRequest;
}  // namespace ems::v1

namespace ems::controller {

inline constexpr size_t kModelsMax = 1024;
inline constexpr uint64_t kModelBlocksMax = 4'000'000;
inline constexpr uint32_t kPullPriorityMax = 1000;

struct ModelRecord;
// Milliseconds since 1970, by the machine's wall clock.
uint64_t SystemUnixMs();

// All pointers must outlive the object. Threading: one thread (the loop "ems-models").
class ModelState final {
 public:
  struct Parts {
    const Clock* clock;
    RowStore* rows;
    ViewPublisher* publisher;
    std::function<uint64_t()> unix_ms = &SystemUnixMs;  // for what outlives a restart
    ClusterEvents* events = nullptr;  // told of versions and jobs; null: nobody is
  };
  // A version that nobody has used, prefetched or pinned for `unused_max` goes, unless it is its
  // model's newest; zero: it stays.
  ModelState(const Parts& parts, Duration unused_max);
  ~ModelState();

  // Loads what is stored; jobs go on. Errors: kDataLoss
  Status Start();
  // Ends jobs that a change of the view has finished, whose time is over or whose end the disk has
  // refused, stores what was used and lets versions go that are out of use.
  void Tick();

  // Errors of all that name a version: kNotFound, kInvalidArgument; of all that change something:
  // kUnavailable  the disk refuses.
  // Errors: kInvalidArgument    kAlreadyExists  that version has other files, or all of it is to be
  // read twice and some may have been read once    kResourceExhausted
  Status AddModel(const v1::AddModelRequest& request, v1::ModelStatus* reply);
  Status GetModel(const v1::ModelRef& request, v1::ModelStatus* reply);
  Status GetManifest(const v1::ModelRef& request, v1::ModelManifest* reply);
  Status Prefetch(const v1::PrefetchRequest& request, v1::ModelStatus* reply);
  Status CancelPrefetch(const v1::ModelRef& request, v1::ModelStatus* reply);
  Status PinModel(const v1::PinModelRequest& request, v1::ModelStatus* reply);
  Status UseModel(const v1::ModelRef& request, v1::ModelStatus* reply);
  // Errors: kFailedPrecondition  it is pinned
  Status RemoveModel(const v1::ModelRef& request, v1::RemoveModelReply* reply);
  // Errors: kFailedPrecondition  a digest that is not the one known: the source has changed
  //   kNotFound  it is of another version that had this id
  Status ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply);
  // What a server has found that a file adds up to. Ends the job if the file is damaged for good.
  // Errors: kNotFound  no such version, or the file has no sum
  Status ReportSum(const v1::ReportSumRequest& request, v1::ReportSumReply* reply);

  // `*news`: in, that an answer is wanted in any case; out, whether there is anything that the
  // caller does not have yet. Neither: the reply is not filled.
  Status ListModels(const v1::ListModelsRequest& request, v1::ListModelsReply* reply, bool* news);
  Status GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply, bool* news);
  Status FollowUnverified(const v1::FollowUnverifiedRequest& request,
                          v1::FollowUnverifiedReply* reply, bool* news);

 private:
  using Model = ModelRecord;

  Status TakeRow(std::string_view key, std::string_view value);
  Result<Model*> Find(const v1::ModelRef& ref);
  Result<Model*> Touch(const v1::ModelRef& ref);
  Status AddAgain(Model* model, const model::Manifest& asked, bool may_lower,
                  v1::ModelStatus* reply);
  Model* Newest(const std::string& model);
  void Fill(const Model& model, v1::ModelStatus* out) const;
  // The row that says what a version's pin and job are.
  Status Save(Model* model, const PullJob& job, bool pinned);
  Status EndJob(Model* model, int state, const Status& why, PullJob::Failures failures = {});
  // Ends its job if that is over. What the disk refuses is tried again by the next tick.
  Status JudgeJob(Model* model);
  Status TakeDigests(Model* model, const v1::ReportPullRequest& request);
  Status Drop(Model* model, std::string_view why);
  // Bound: one write in ModelRecord::kStoreUsesEvery.
  void StoreUses(TimePoint now);
  void Tell(std::string_view kind, const Model& model, std::string_view what) const;
  // Its row of the list is another one.
  void Changed(const Model& model);

  const Parts parts_;
  const Duration unused_max_;
  std::map<uint32_t, std::unique_ptr<Model>> models_;  // by id, so the last one of a name is newest
  uint32_t next_id_ = 1;
  uint64_t blocks_ = 0;  // of all versions
  ChangeLog list_;
  uint64_t started_ = 1;
  TimePoint store_uses_at_{};
};

}  // namespace ems::controller
