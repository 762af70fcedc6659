#pragma once
// The report of a trace replay: text, JSON and gates.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "bench/trace/trace_placement.h"
#include "bench/trace/trace_replay.h"

namespace ems::bench {

// Payload bytes that the replay left on one server.
struct ServerBytes {
  std::string name;
  bool live = true;
  uint64_t bytes = 0;
};

struct TraceFigures {
  const Trace* trace = nullptr;
  ReplaySettings settings;
  uint64_t capacity_bytes = 0;
  ReplayResult replay;
  std::vector<ServerBytes> servers;
  std::vector<PlacedBytes> placement{};  // empty: not measured
  uint64_t ssd_hits = 0;  // of the loaded blocks, those that servers read from their SSD
};

struct TraceExpectations {
  std::optional<double> hit_rate_percent{};  // at least
  std::optional<double> hit_delta_points{};  // at most, from the ideal LRU
  bool errors = false;                       // servers are stopped meanwhile: calls may fail
};

// The title line over the marks, and one mark: hit rates so far beside the ideal's.
std::string MarkTitle();
std::string MarkLine(const ReplayTotals& totals, uint64_t requests_in_all);

// Prints and writes everything; fails the report on a wrong byte, an interruption, and on
// calls that failed unless they are expected to.
void ReportTrace(const TraceFigures& figures, const TraceExpectations& expect, Report* report);

}  // namespace ems::bench
