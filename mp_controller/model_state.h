#pragma once
// Which versions of which models there are, what they are made of, and how far the servers are with
// bringing them into the pool.
//
// A version's blocks get their digests as they are read from the source for the first time. A job
// (Prefetch) is over when every server of the view of the moment has said that it has nothing left
// to do under that view; so a job outlives the death of a server and the restart of the controller.
// Invariant: versions, pins, jobs and digests are durable before they are answered or counted; an
// id and a job's number are used once. Bound: kModelsMax versions, kModelBlocksMax blocks of all.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "ems_model/format/manifest.h"
#include "mp_controller/durable_rows.h"
#include "mp_controller/view_publisher.h"

namespace ems::v1 {
class AddModelRequest;
class GetDigestsReply;
class GetDigestsRequest;
class ListModelsReply;
class ListModelsRequest;
class ModelManifest;
class ModelRef;
class ModelStatus;
class PinModelRequest;
class PrefetchRequest;
class PullJob;
class RemoveModelReply;
class ReportPullReply;
class ReportPullRequest;
}  // namespace ems::v1

namespace ems::controller {

inline constexpr size_t kModelsMax = 1024;
inline constexpr uint64_t kModelBlocksMax = 4'000'000;
inline constexpr uint32_t kPullPriorityMax = 1000;

// All pointers must outlive the object. Threading: one thread (the loop "ems-models").
class ModelState final {
 public:
  struct Parts {
    const Clock* clock;
    DurableRows* rows;
    ViewPublisher* publisher;
  };
  // A version that nobody has used, prefetched or pinned for `unused_max` goes, unless it is its
  // model's newest; zero: it stays.
  ModelState(const Parts& parts, Duration unused_max);
  ~ModelState();

  // Loads what is stored; jobs go on. Errors: kDataLoss
  Status Start();
  // Ends jobs that a change of the view has finished, and lets versions go that are out of use.
  void Tick();

  // Errors of all that name a version: kNotFound, kInvalidArgument; of all that change something:
  // kUnavailable  the disk refuses.
  // Errors: kInvalidArgument    kAlreadyExists  that version has other files    kResourceExhausted
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
  Status ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply);

  // `*news` is false when there is nothing that the caller does not have yet.
  Status ListModels(const v1::ListModelsRequest& request, v1::ListModelsReply* reply, bool* news);
  Status GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply, bool* news);

 private:
  struct Model;
  struct Job;

  Status TakeRow(std::string_view key, std::string_view value);
  Result<Model*> Find(const v1::ModelRef& ref);
  Model* Newest(const std::string& model);
  void Fill(const Model& model, v1::ModelStatus* out) const;
  void FillJob(const Model& model, v1::PullJob* out) const;
  // The row that says what a version's pin and job are.
  Status Save(const Model& model, const Job& job, bool pinned);
  Status EndJob(Model* model, int state, const Status& why);
  Status TakeDigests(Model* model, const v1::ReportPullRequest& request);
  bool EveryoneFinished(const Model& model) const;
  Status Drop(Model* model, std::string_view why);
  void Changed() { ++number_; }

  const Parts parts_;
  const Duration unused_max_;
  std::map<uint32_t, std::unique_ptr<Model>> models_;  // by id, so the last one of a name is newest
  uint32_t next_id_ = 1;
  uint64_t blocks_ = 0;  // of all versions
  uint64_t number_ = 1;  // of the list
};

}  // namespace ems::controller
