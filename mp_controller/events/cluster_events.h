#pragma once
// What has happened to the cluster since this controller started, for operators.
//
// In memory alone: a restart begins again with kControllerStarted. Bound: kEventsMax, of texts of
// kTextBytesMax; the oldest one goes.
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "common/guarded.h"
#include "common/wall_time.h"

namespace ems::v1 {
class ListEventsReply;
class ListEventsRequest;
}  // namespace ems::v1

namespace ems::controller {

// Kinds. Their words are part of the interface (docs/OPERATIONS.md).
inline constexpr std::string_view kControllerStarted = "controller_started";
inline constexpr std::string_view kNodeJoined = "node_joined";
inline constexpr std::string_view kNodeRestarted = "node_restarted";
inline constexpr std::string_view kNodeLost = "node_lost";
inline constexpr std::string_view kNodeLeft = "node_left";
inline constexpr std::string_view kNodeRemoved = "node_removed";
inline constexpr std::string_view kNodeDraining = "node_draining";
inline constexpr std::string_view kNodeDrained = "node_drained";
inline constexpr std::string_view kNodeDrainCancelled = "node_drain_cancelled";
inline constexpr std::string_view kViewPublished = "view_published";
inline constexpr std::string_view kViewFrozen = "view_frozen";
inline constexpr std::string_view kViewThawed = "view_thawed";
inline constexpr std::string_view kNamespaceCreated = "namespace_created";
inline constexpr std::string_view kNamespaceChanged = "namespace_changed";
inline constexpr std::string_view kNamespaceDeleted = "namespace_deleted";
inline constexpr std::string_view kSsdDegraded = "ssd_degraded";
inline constexpr std::string_view kSsdRecovered = "ssd_recovered";
inline constexpr std::string_view kObjectsDamaged = "objects_damaged";
inline constexpr std::string_view kModelAdded = "model_added";
inline constexpr std::string_view kModelLoaded = "model_loaded";
inline constexpr std::string_view kModelFailed = "model_failed";
inline constexpr std::string_view kModelRemoved = "model_removed";

struct ClusterEvent {
  std::string_view kind;  // one of the above
  std::string node;       // empty: of none
  std::string name_space;
  std::string text;  // a sentence
};

// Threading: thread-safe.
class ClusterEvents final {
 public:
  static constexpr size_t kEventsMax = 1000;
  static constexpr size_t kTextBytesMax = 500;

  // `unix_ms`: the wall clock.
  explicit ClusterEvents(std::function<int64_t()> unix_ms = &UnixMs);
  void Add(ClusterEvent event);
  // Those that the request asks for, the oldest first. Cost: O(kEventsMax).
  void List(const v1::ListEventsRequest& request, v1::ListEventsReply* reply);

 private:
  struct Stored {
    uint64_t sequence = 0;
    int64_t unix_ms = 0;
    ClusterEvent event;
  };
  struct State {
    std::deque<Stored> events;
    uint64_t last = 0;  // sequence
  };
  const std::function<int64_t()> unix_ms_;
  const uint64_t run_;  // random, of this process
  Guarded<State> state_;
};

// For parts that may be without: null takes nothing.
void AddEvent(ClusterEvents* events, ClusterEvent event);

}  // namespace ems::controller
