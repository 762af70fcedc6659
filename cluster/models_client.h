#pragma once
// The one door to the controller's Models service, for servers, SDKs and tools.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems::v1 {
class FollowUnverifiedReply;
class FollowUnverifiedRequest;
class GetDigestsReply;
class GetDigestsRequest;
class ListModelsReply;
class ModelManifest;
class ModelRef;
class ModelStatus;
class ReportPullReply;
class ReportPullRequest;
class ReportSumRequest;
}  // namespace ems::v1

namespace ems {

class ViewCache;

// Every call has a deadline and returns kUnavailable or kDeadlineExceeded when the controller does
// not answer, kFailedPrecondition when it is another cluster's; other errors are those of
// proto/model.proto and of ModelState. Threading: thread-safe.
class ModelsClient final {
 public:
  // `address` is host:port, or those of several controllers, of which the leader is asked
  // (leader_calls.h); or all calls fail with kInvalidArgument, which says why. Nothing is connected
  // yet. `joined`: as UnaryCalls.
  explicit ModelsClient(const std::string& address, ViewCache* joined = nullptr);
  ~ModelsClient();
  ModelsClient(const ModelsClient&) = delete;
  ModelsClient& operator=(const ModelsClient&) = delete;

  Status Add(const v1::ModelManifest& manifest, v1::ModelStatus* reply, Deadline deadline,
             bool may_lower_first_read = false);
  Status Get(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  // The list when it is another than number `since`, or after `wait`; whole.
  Status List(uint64_t since, Duration wait, v1::ListModelsReply* reply, Deadline deadline) {
    return List(since, wait, false, reply, deadline);
  }
  // The same; `by_change`: what is not as in list `since` (model_list.h).
  Status List(uint64_t since, Duration wait, bool by_change, v1::ListModelsReply* reply,
              Deadline deadline);
  Status GetManifest(const v1::ModelRef& ref, v1::ModelManifest* reply, Deadline deadline);
  Status GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply,
                    Deadline deadline);
  // `job_timeout`: of the job; zero: the controller's default.
  Status Prefetch(const v1::ModelRef& ref, uint32_t priority, v1::ModelStatus* reply,
                  Deadline deadline, Duration job_timeout = Duration(0));
  Status CancelPrefetch(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  Status Pin(const v1::ModelRef& ref, bool pinned, v1::ModelStatus* reply, Deadline deadline);
  Status Use(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  Status Remove(const v1::ModelRef& ref, Deadline deadline);
  Status ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply,
                    Deadline deadline);
  Status FollowUnverified(const v1::FollowUnverifiedRequest& request,
                          v1::FollowUnverifiedReply* reply, Deadline deadline);
  Status ReportSum(const v1::ReportSumRequest& request, Deadline deadline);
  // Ends the calls that wait, and later ones at once: for a thread that is to stop.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems
