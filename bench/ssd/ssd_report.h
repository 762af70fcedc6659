#pragma once
// The report of `ems-bench ssd`: text, JSON, and gates for the SSD tier's targets.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/harness/report.h"
#include "bench/ssd/ssd_bench.h"
#include "bench/ssd/ssd_server_bench.h"

namespace ems::bench {

// Medians of the rounds, series by series.
std::string RenderSsd(const SsdResults& results);
nlohmann::ordered_json SsdJson(const SsdResults& results);
// One gate for each target of what was measured. Those that need fio fail without it, and the
// report says why.
void JudgeSsd(const SsdResults& results, Report* report);

// The same of whole servers.
struct SsdServerResults {
  std::vector<ServerRestart> restarts;
  std::vector<TierPuts> puts;
};
std::string RenderSsdServers(const SsdServerResults& results);
nlohmann::ordered_json SsdServersJson(const SsdServerResults& results);
void JudgeSsdServers(const SsdServerResults& results, Report* report);

}  // namespace ems::bench
