#pragma once
// The report of elastic runs: text, JSON and gates.
#include <span>
#include <string>
#include <vector>

#include "bench/elastic/elastic_bench.h"
#include "bench/harness/report.h"

namespace ems::bench {

// A change beside the same requests of the undisturbed run.
struct ChangeFigures {
  std::string name;
  double at_s = 0, took_s = 0;
  double in_view_s = 0;  // not a number: not in the window
  bool lost = false;     // with it blocks went that no server has any more
  bool killed = false;   // until its lease is over, nobody can answer for the server
  WindowSums sums;
  double hit_percent = 0;
  double undisturbed_percent = 0;
  // Of an LRU of the same bytes that loses the same blocks at the same moment, and of one that
  // loses none.
  double ideal_percent = 0, ideal_whole_percent = 0;
  double quiet_p50_ms = 0, quiet_p99_ms = 0;  // Gets of the undisturbed run
  ForwardCounters forwarded;
  double ideal_bytes = 0;  // that have to move

  // Against the undisturbed run, less what the ideal LRU says that earlier losses cost.
  double Points() const {
    return hit_percent - undisturbed_percent - (ideal_percent - ideal_whole_percent);
  }
  double PointsFromIdeal() const { return hit_percent - ideal_percent; }
  double P99Ratio() const;
  double MovedRatio() const;  // not a number where nothing has to move
};

ChangeFigures FiguresOf(const Change& change, const ElasticRun& run, const ElasticRun& undisturbed,
                        const Trace& trace, const ElasticSettings& settings);

// Of all runs, the undisturbed one first.
void ReportElastic(std::span<const ElasticRun> runs, const Trace& trace,
                   const ElasticSettings& settings, Report* report);

// Gates of one change.
void CheckChange(const ChangeFigures& figures, Report* report);

}  // namespace ems::bench
