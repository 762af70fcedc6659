#pragma once
// The thread that tells watchers of what was published, so that the controller's loop does not.
// Bound: one round at a time; what is published meanwhile makes one further round.
#include "common/thread_pool.h"
#include "mp_controller/publish/view_publisher.h"

namespace ems::controller {

// Threading: one thread (the owner); runs "ems-fanout".
class ViewFanout final {
 public:
  // `publisher` must outlive it.
  explicit ViewFanout(ViewPublisher* publisher);
  // The publisher must be closed.
  ~ViewFanout() = default;
  ViewFanout(const ViewFanout&) = delete;
  ViewFanout& operator=(const ViewFanout&) = delete;

 private:
  Thread thread_;
};

}  // namespace ems::controller
