#pragma once
// What `ems-bench local` shows of a run: tables for people, JSON for machines, a plot for papers.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/local_result.h"
#include "bench/svg_plot.h"

namespace ems::bench {

// A table an operation: a row a size, side and number of threads, with what it reached beside
// memcpy and the peers.
std::string LocalTables(const LocalResults& results);
// {"lanes": […], "storms": […], "missing": […]}: every figure of every round.
nlohmann::ordered_json LocalJson(const LocalResults& results);
// GB/s and p50 by size with one caller: EMS, memcpy, redis and memcached over Unix sockets and TCP.
Plot LocalPlot(const LocalResults& results, std::string subtitle);

}  // namespace ems::bench
