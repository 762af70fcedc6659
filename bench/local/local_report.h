#pragma once
// The report of an `ems-bench local` run: tables for people, JSON for scripts.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/local/local_result.h"

namespace ems::bench {

// A table an operation: a row a size, side and number of threads, with what it reached beside
// memcpy and the peers.
std::string LocalTables(const LocalResults& results);
// {"lanes": […], "storms": […], "missing": […]}: every figure of every round, by the
// keys that scripts know.
nlohmann::ordered_json LocalJson(const LocalResults& results);

}  // namespace ems::bench
