#pragma once
// The control plane at size: a controller in this process with its store, loop and gRPC service,
// simulated servers, and watchers on streams; how long one change takes to reach all of them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/control/watch_load.h"
#include "bench/harness/latency_recorder.h"
#include "common/clock.h"
#include "common/status.h"

namespace ems::bench {

struct ControlSettings {
  size_t servers = 1000;
  size_t watchers = 10'000;
  size_t connections = 16;
  size_t rounds = 5;  // joins, and as many leaves
};

// One change of the view on its way to all watchers.
struct ChangeResult {
  std::string change;  // "join", "leave"
  Duration decided{};  // from the call that asked for it until the view was published
  Arrivals arrivals;   // from that call until watchers had the view
};

struct ControlResult {
  std::vector<ChangeResult> changes;
  Duration servers_took{};   // until all servers were in the view
  Duration watchers_took{};  // until each watcher had its first view
  Duration blocked{};  // longest that the controller's loop did not come to a task, in changes
  Duration blocked_at_start{};  // the same while servers registered and watchers came
  Duration cpu{};               // of this process, controller and watchers, in changes
  uint64_t failed_beats = 0;
  uint64_t peak_rss_bytes = 0;  // of this process
};

// Errors: of a call; kDeadlineExceeded  a change did not reach all within ten seconds
Result<ControlResult> RunControlBench(const ControlSettings& settings);

// How evenly slots lie on equal servers, what one change moves, and how large its message is. Pure:
// the same on any machine.
struct PlacementFigures {
  size_t servers = 0;
  double max_over_mean = 0;
  double join_moved = 0;   // × the least that has to move
  double leave_moved = 0;  // likewise
  uint64_t join_bytes = 0, leave_bytes = 0, slot_bytes = 0, whole_bytes = 0;
};
PlacementFigures MeasurePlacementOf(size_t servers);

}  // namespace ems::bench
