#pragma once
// Asks the controller's loops for what they know, and makes the JSON of it on the caller's thread.
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace ems::controller {

class ClusterEvents;
class ClusterState;
class EventLoop;
class ModelService;
class ViewPublisher;

// Threading: thread-safe.
class FactFinder final {
 public:
  struct Parts {
    EventLoop* loop;      // that `state` lives on
    ClusterState* state;  // a task of the loop asks it
    ViewPublisher* publisher;
    ModelService* models;
    ClusterEvents* events = nullptr;              // null: none are shown
    Duration patience = std::chrono::seconds(1);  // for both loops together
  };
  // All parts must outlive the finder, and a loop each of its tasks.
  explicit FactFinder(const Parts& parts) : parts_(parts) {}

  // ClusterJson of now. Cost: one task on each loop, O(nodes + slots) and O(models); blocks for
  // them. Errors: kUnavailable  a loop does not answer in time, or its queue is full
  Result<std::string> Json() const;

 private:
  const Parts parts_;
};

}  // namespace ems::controller
