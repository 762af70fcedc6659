#pragma once
// Runs a server under load, kills it again and again, and checks after each start that what it
// guaranteed holds: right bytes, nothing older than what was replaced or removed, everything
// durable, never more disk than it may take.
#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace ems::testing {

struct CrashOptions {
  int kills = 10;
  uint64_t seed = 1;
  int threads = 3;
  uint64_t keys = 120;  // spread over the threads
  bool tight = false;   // too little SSD for all of them: regions are reclaimed all the time
  Duration run_min = std::chrono::milliseconds(50);
  Duration run_max = std::chrono::milliseconds(800);
  bool fail_points = true;  // half of the kills come from inside
  // Not empty: kill i comes from inside, at places[i % n], and one that does not come within
  // `place_patience` is a broken guarantee.
  std::vector<std::string> places = {};
  Duration place_patience = std::chrono::seconds(30);
};

// Every fail point of a server.
std::vector<std::string> CrashPlaces();

struct CrashReport {
  int kills = 0;
  int inside = 0;  // of them, at a fail point
  uint64_t calls = 0;
  uint64_t checks = 0;
  uint64_t hits = 0;                // of the checks after a start
  uint64_t quiet_writes = 0;        // of held-back values, by servers that were killed from outside
  Duration slowest_start{0};        // until the server is ready
  std::vector<std::string> broken;  // guarantees, the first 20
};

// Errors: those of starting daemons; a broken guarantee is in the report. Deterministic in what it
// asks for and where it kills, as far as the machine's timing lets it be.
Result<CrashReport> RunCrashes(const CrashOptions& options);

}  // namespace ems::testing
