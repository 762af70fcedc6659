#pragma once
// One job of a version of a model: what servers say of their parts of it, and when it is over.
//
// Bound: a part for each server that has worked for it (the caller's to bound).
#include <cstdint>
#include <map>

#include "common/clock.h"
#include "common/status.h"
#include "mp_controller/view/dht_view.h"

namespace ems::v1 {
class PullJob;
class ReportPullRequest;
}  // namespace ems::v1

namespace ems::controller {

// Threading: caller locks.
struct PullJob {
  // What one server says.
  struct Part {
    uint64_t view = 0;  // packed
    bool finished = false;
    uint64_t blocks_done = 0, bytes_done = 0;
    uint64_t source_bytes = 0, promoted_bytes = 0, shared_bytes = 0;
    uint64_t read_bytes = 0;  // a sign of life
  };
  uint64_t number = 0;
  int state = 0;  // v1::PullState
  uint32_t priority = 0;
  Status why;  // it has failed
  TimePoint began{}, ended{};
  std::map<uint64_t, Part> parts;  // by boot id: a server that was restarted counts anew

  bool running() const;
  void Take(const v1::ReportPullRequest& report);
  // Every server of `view` (null: there is none yet) has nothing left to do under it.
  bool FinishedBy(const DhtView* view) const;
  // What lasts: number, state, priority, why.
  void Save(v1::PullJob* out) const;
  void Restore(const v1::PullJob& saved);
  // All of it but what has been checked. Of a version of so many blocks and bytes.
  void Fill(const DhtView* view, TimePoint now, uint64_t blocks, uint64_t bytes,
            v1::PullJob* out) const;
};

}  // namespace ems::controller
