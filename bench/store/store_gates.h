#pragma once
// Gates of `ems-bench store`: the results of a run against the targets of EMS.
#include <cstdint>
#include <vector>

#include "bench/harness/report.h"
#include "bench/store/store_bench.h"

namespace ems::bench {

inline constexpr uint64_t kExistsKeys = 1000;

// Fails the report for wrong bytes, errors and stored keys that were missing.
void JudgeResult(const SectionResult& result, Report* report);
// Null when it was not measured.
const SectionResult* FindResult(const std::vector<SectionResult>& results, Section section,
                                uint64_t bytes);
// Exact gates. `verified`: bytes were compared; a run that did not fails.
void JudgeCounts(const std::vector<SectionResult>& results, bool verified, Report* report);
// Timed gates, over TCP on one connection.
void JudgeGates(const std::vector<SectionResult>& results, Report* report);
// Timed: MultiExists of kExistsKeys keys beside one Exists; stated for three servers or more.
void JudgeExists(const StoreBench::ExistsTimes& times, size_t servers, Report* report);

}  // namespace ems::bench
