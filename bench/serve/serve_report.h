#pragma once
// The report of `ems-bench serve`: the block that vLLM's serving benchmark ends with, for one loop
// or two side by side, hit rates by round, and the reduction of the time to first token.
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "bench/harness/report.h"
#include "bench/serve/serve_bench.h"

namespace ems::bench {

// vLLM's block, line by line, so that what reads theirs reads ours; then prefix hits and failures.
// Of two loops the same figures and their ratio, second to first; "-" where the first has none.
std::string ServingBlock(std::span<const ServeFigures> sides, std::span<const std::string> names);

// A line a round: how much of the prompts could come from the cache, and did; TTFT of each side.
std::string RoundTable(const ServeResults& results, std::span<const std::string> names);
// A line a phase with a stated reuse: what was cached, mean TTFT of each side, and its fall.
std::string ReuseTable(const ServeResults& results, std::span<const std::string> names);

// 1 - mean TTFT of the second side / that of the first; not a number without answers of two sides.
double TtftFall(const ServePhase& phase);

// The reduction that is the target at a reuse; 0: none.
double TargetFall(double reuse);
// Exact: every answer came, is the same with EMS and without, and had from the cache what was
// stored before. Timed: the reduction in each phase of one request at a time for which there is a
// target. A phase that has no answers fails.
void AddServeGates(const ServeResults& results, Report* report);

nlohmann::ordered_json ServeJson(const ServeResults& results, std::span<const std::string> names);

}  // namespace ems::bench
