#pragma once
// One job of a version of a model: what servers say of their parts of it, and when it is over.
//
// A job waits for the servers of the view of the moment: who has left is not waited for, who has
// joined is. Each of them ends by having nothing left to do under that view, or by an error, which
// a later report may take back; the job ends when all have, and at its deadline in any case.
// Invariant: a job that is done has had every block in its owner's memory under the view of that
// moment. Bound: a part for each server that has worked for it (the caller's to bound);
// kFailuresMax servers are named.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::v1 {
class PullJob;
class ReportPullRequest;
}  // namespace ems::v1

namespace ems::controller {

// What its promises rest on. The controller follows all; the simulation leaves one out at a time.
struct JobRules {
  bool jobs_have_deadlines = true;
  // Only what a server says of its blocks under the view of the moment counts.
  bool finished_is_under_the_view = true;
  // A process that was restarted under a name counts from 0.
  bool parts_are_of_one_process = true;
  // A report that was overtaken by a later one counts for nothing.
  bool late_reports_count_for_nothing = true;
};

// Threading: caller locks.
struct PullJob {
  static constexpr size_t kFailuresMax = 16;
  static constexpr size_t kErrorBytesMax = 300;
  static constexpr Duration kTimeout = std::chrono::hours(1);
  static constexpr Duration kTimeoutMin = std::chrono::seconds(1);
  static constexpr Duration kTimeoutMost = std::chrono::hours(24);

  // What one server says.
  struct Part {
    uint64_t view = 0;  // packed
    uint64_t sequence = 0;
    bool finished = false;
    Status error;  // it cannot go on
    TimePoint heard{};
    uint64_t blocks_done = 0, bytes_done = 0;
    uint64_t source_bytes = 0, promoted_bytes = 0, shared_bytes = 0;
    uint64_t read_bytes = 0;     // a sign of life
    uint64_t checked_bytes = 0;  // added up, of files that are not compared yet
  };
  struct Failure {
    std::string server;
    Status why;
  };
  // Who has failed, by name, kFailuresMax at most.
  struct Failures {
    std::vector<Failure> named;
    uint32_t left_out = 0;
    // All of it as one error: that of the server whose error is the least likely to pass.
    Status Summary() const;
  };
  struct End {
    int state = 0;  // v1::PullState
    Failures failures;
    Status why;
  };

  uint64_t number = 0;
  int state = 0;  // v1::PullState
  uint32_t priority = 0;
  Status why;         // it has failed
  Failures failures;  // then
  TimePoint began{}, ended{}, deadline{};
  std::map<uint64_t, Part> parts;  // by boot id: a server that was restarted counts from 0
  JobRules rules;

  bool running() const;
  // A job that begins now. `timeout`: kTimeoutMin to kTimeoutMost.
  void Begin(uint64_t job, uint32_t job_priority, Duration timeout, TimePoint now);
  // It is asked for again: it ends no sooner than `timeout` (0: as it is) from now, as far as
  // kTimeoutMost allows. True: it ends later than it did.
  bool Extend(Duration timeout, TimePoint now);
  // `refused`: what is wrong with the report itself, which ends that server's part.
  void Take(const v1::ReportPullRequest& report, const Status& refused, TimePoint now);
  // Whether it is over, and how. `view` null: there is none yet; `checked`: all files have been
  // compared. A frozen view ends no job: who is missing from it is not known.
  std::optional<End> Judge(const DhtView* view, bool checked, TimePoint now) const;
  // What lasts: number, state, priority, deadline, and why. `unix_ms`: the wall clock at `now`.
  void Save(TimePoint now, uint64_t unix_ms, v1::PullJob* out) const;
  void Restore(const v1::PullJob& saved, TimePoint now, uint64_t unix_ms);
  // All of it; of checked_bytes, what is not compared yet. Of a version of so many blocks and
  // bytes.
  void Fill(const DhtView* view, TimePoint now, uint64_t blocks, uint64_t bytes,
            v1::PullJob* out) const;

 private:
  const Part* PartOf(const NodeInfo& node) const;
  bool HasFinished(const Part* part, const DhtView& view) const;
  void SaveFailures(const Failures& failed, v1::PullJob* out) const;
  Failures FailedNow(const DhtView* view) const;
  Failures LateAt(const DhtView* view, TimePoint now) const;
};

}  // namespace ems::controller
