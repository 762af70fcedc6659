#pragma once
// Tells the controller how far this server is with the versions it works at, and what it has
// learned of their blocks.
#include <cstdint>

#include "common/status.h"
#include "mp_server/models/digest_follower.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: thread-safe; blocks on the controller.
class PullReporter final {
 public:
  // Both must outlive it.
  PullReporter(PullTable* table, DigestFollower* digests) : table_(*table), digests_(digests) {}

  // Reports what is new soon after it is, and what is running again and again, until the table is
  // stopped.
  void Run();
  // All that is new of a version that nobody works at any more, if the controller answers.
  void ReportLast(ModelPull* pull);

 private:
  void Report(uint32_t id);
  Status Tell(v1::ReportPullRequest* report) const;

  PullTable& table_;
  DigestFollower* const digests_;
};

}  // namespace ems::server
