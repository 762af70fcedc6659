#pragma once
// What the SSD bench found, for people and for machines, and what was promised of it.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/report.h"
#include "bench/ssd_bench.h"

namespace ems::bench {

// Medians of the rounds, lane by lane.
std::string RenderSsd(const SsdResults& results);
nlohmann::ordered_json SsdJson(const SsdResults& results);
// One gate for each promise about what was measured. Those that need fio fail without it, and the
// report says why.
void JudgeSsd(const SsdResults& results, Report* report);

}  // namespace ems::bench
