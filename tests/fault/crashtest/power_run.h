#pragma once
// Runs a controller and a server with an SSD tier under load, cuts their power again and again
// (power_cut.h), and checks after each start what was promised: what was acknowledged as durable is
// there, nothing that was replaced or removed is back, views and namespaces have not gone back, and
// every byte is right.
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::testing {

struct PowerOptions {
  int cuts = 20;
  uint64_t seed = 1;
  int threads = 2;     // in each of two namespaces, one durable and one with relaxed syncs
  uint64_t keys = 60;  // likewise, spread over the threads
  bool tight = false;  // too little SSD for all of them: regions are reclaimed all the time
  // A second server, which at every other cut or so is away until its slots belong to the first
  // one, and then comes back with what it had. That values are there is not checked then.
  bool joins = false;
  std::string lost_syncs = {};  // a glob of paths whose syncs do nothing: guarantees break
  Duration run_min = std::chrono::milliseconds(10);
  Duration run_max = std::chrono::milliseconds(300);
};

struct PowerReport {
  int cuts = 0;
  int servers = 0, controllers = 0;  // that were cut off; both at once is one of each
  int joins = 0;                     // of a server that had been away
  uint64_t calls = 0;
  uint64_t namespaces = 0;          // changes that were acknowledged
  uint64_t checks = 0;              // reads after starts
  uint64_t hits = 0;                // of them
  uint64_t quiet_writes = 0;        // of held-back values, by servers that were cut off
  uint64_t unsynced = 0;            // changes of files and folders, when power was cut
  uint64_t lost = 0;                // of them
  Duration slowest_start{0};        // until a daemon is ready
  std::vector<std::string> broken;  // guarantees, the first 20
  std::string logs;                 // the ends of those of the daemons, when one was broken
};

// Errors: those of starting daemons for the first time; what breaks later is in the report. The
// seed decides when power is cut, for whom and what is lost then, as far as the machine's timing
// lets it.
Result<PowerReport> RunPowerCuts(const PowerOptions& options);

}  // namespace ems::testing
