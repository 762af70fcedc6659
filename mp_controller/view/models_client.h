#pragma once
// The one door to the controller's Models service, for servers, SDKs and tools.
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems::v1 {
class FileCheck;
class FollowChecksReply;
class FollowChecksRequest;
class GetDigestsReply;
class GetDigestsRequest;
class ListModelsReply;
class ModelManifest;
class ModelRef;
class ModelStatus;
class ReportCheckRequest;
class ReportPullReply;
class ReportPullRequest;
}  // namespace ems::v1

namespace ems {

// Every call has a deadline and returns kUnavailable or kDeadlineExceeded when the controller does
// not answer; other errors are those of proto/model.proto and of ModelState. Threading:
// thread-safe.
class ModelsClient final {
 public:
  // `address` is host:port, or all calls fail with kInvalidArgument, which says why; nothing is
  // connected yet.
  explicit ModelsClient(std::string address);
  ~ModelsClient();
  ModelsClient(const ModelsClient&) = delete;
  ModelsClient& operator=(const ModelsClient&) = delete;

  Status Add(const v1::ModelManifest& manifest, v1::ModelStatus* reply, Deadline deadline,
             bool may_lower_first_read = false);
  Status Get(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  // The list when it is another than number `since`, or after `wait`.
  Status List(uint64_t since, Duration wait, v1::ListModelsReply* reply, Deadline deadline);
  Status GetManifest(const v1::ModelRef& ref, v1::ModelManifest* reply, Deadline deadline);
  Status GetDigests(const v1::GetDigestsRequest& request, v1::GetDigestsReply* reply,
                    Deadline deadline);
  Status Prefetch(const v1::ModelRef& ref, uint32_t priority, v1::ModelStatus* reply,
                  Deadline deadline);
  Status CancelPrefetch(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  Status Pin(const v1::ModelRef& ref, bool pinned, v1::ModelStatus* reply, Deadline deadline);
  Status Use(const v1::ModelRef& ref, v1::ModelStatus* reply, Deadline deadline);
  Status Remove(const v1::ModelRef& ref, Deadline deadline);
  Status ReportPull(const v1::ReportPullRequest& request, v1::ReportPullReply* reply,
                    Deadline deadline);
  // All of it, however many answers it takes.
  Status FollowChecks(const v1::FollowChecksRequest& request, v1::FollowChecksReply* reply,
                      Deadline deadline);
  Status ReportCheck(const v1::ReportCheckRequest& request, v1::FileCheck* reply,
                     Deadline deadline);
  // Ends the calls that wait, and later ones at once: for a thread that is to stop.
  void Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems
