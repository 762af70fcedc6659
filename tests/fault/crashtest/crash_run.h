#pragma once
// Runs a server under load, kills it again and again, and checks after each start that what it
// promised holds: right bytes, nothing older than what was replaced or removed, everything durable,
// never more disk than it may take.
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
  bool tight = false;   // too little SSD for all of them: regions are given up all the time
  Duration run_min = std::chrono::milliseconds(50);
  Duration run_max = std::chrono::milliseconds(800);
  bool fail_points = true;  // half of the kills come from inside
};

struct CrashReport {
  int kills = 0;
  int inside = 0;  // of them, at a fail point
  uint64_t calls = 0;
  uint64_t checks = 0;
  uint64_t hits = 0;                // of the checks after a start
  std::vector<std::string> broken;  // promises, the first 20
};

// Errors: those of starting daemons; a broken promise is in the report. Deterministic in what it
// asks for and where it kills, as far as the machine's timing lets it be.
Result<CrashReport> RunCrashes(const CrashOptions& options);

}  // namespace ems::testing
