#pragma once
// Runs a controller, three servers with SSD tiers and several clients, breaks them in rounds by a
// schedule that a seed decides (schedule.h), and checks after each round what was promised: every
// read is explained by the calls that there were (key_record.h), every call ends in time, no daemon
// ends by itself, and when the faults are over all servers are in the view and take Puts again.
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "tests/fault/chaos/chaos_load.h"
#include "tests/fault/chaos/schedule.h"

namespace ems::testing {

struct ChaosOptions {
  uint64_t seed = 1;
  // No round begins later. The first one always does; each takes `round` and what healing takes.
  Duration time = std::chrono::seconds(60);
  Duration round = std::chrono::seconds(8);
  Duration lease = std::chrono::milliseconds(1500);
  // Until all servers are in the view and take Puts, from the end of the faults.
  Duration heal_max = std::chrono::seconds(60);
  ChaosMeans means = {};
  ChaosLoad::Options load = {};
  std::function<void(const std::string&)> on_event =
      {};  // hears of each fault as it comes and goes
};

struct ChaosReport {
  int rounds = 0;
  std::array<uint64_t, kFaultKinds> faults{};  // that have come, by kind
  ChaosCounts counts;
  uint64_t one_sided = 0;  // reads without a server's help
  Duration slowest_heal{0};
  std::vector<std::string> broken;  // guarantees, the first 20; no round after the first
  std::string logs;                 // the ends of those of the daemons, when one was broken
  std::string ToText() const;
};

// Errors: those of starting the cluster for the first time; what breaks later is in the report. The
// seed decides all that is asked for and all faults, as far as the machine's timing lets it. A call
// that never ends ends the process: its thread cannot be joined.
Result<ChaosReport> RunChaos(const ChaosOptions& options);

}  // namespace ems::testing
