#pragma once
// The report of an `ems-bench local` run: tables for people, JSON for scripts.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/sides/side_result.h"

namespace ems::bench {

// A table an operation: a row a size, side and number of threads, with what it reached beside
// memcpy and the peers.
std::string LocalTables(const SideResults& results);
// {"lanes": […], "storms": […], "missing": […]}: every figure of every round, by the
// keys that scripts know.
nlohmann::ordered_json LocalJson(const SideResults& results);

}  // namespace ems::bench
