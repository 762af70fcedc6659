#include "bench/store/store_gates.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/harness/figures.h"

namespace ems::bench {
namespace {

constexpr size_t kMeantServers = 3;  // for which the MultiExists figure is stated
constexpr double kGet1MiBMin = 0.85;
constexpr double kPut1MiBMin = 0.75;
constexpr double kGet64KiBMax = 1.5;
constexpr double kGet4KiBMax = 2.5;

}  // namespace

// Anything that must make the command fail.
void JudgeResult(const SectionResult& r, Report* report) {
  const std::string what =
      fmt::format("{} of {}", SectionName(r.section), FormatBytes(r.value_bytes));
  if (r.wrong_bytes > 0) {
    report->Fail(fmt::format("{}: {} keys came back wrong; a cache must never do this", what,
                             r.wrong_bytes));
  }
  for (const auto& [text, count] : r.errors) {
    report->Fail(fmt::format("{}: {} × {}", what, count, text));
  }
  if (r.hits < r.expected_hits) {
    report->Fail(fmt::format("{}: {} of {} stored keys were missing; do keys × size fit the pool?",
                             what, r.expected_hits - r.hits, r.expected_hits));
  }
}

const SectionResult* FindResult(const std::vector<SectionResult>& results, Section section,
                                uint64_t bytes) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const SectionResult& r) {
    return r.section == section && r.value_bytes == bytes;
  });
  return found == results.end() ? nullptr : &*found;
}

// What comes back is what was stored, and all of it.
void JudgeCounts(const std::vector<SectionResult>& results, bool verified, Report* report) {
  uint64_t wrong = 0, missing = 0;
  for (const SectionResult& r : results) {
    wrong += r.wrong_bytes;
    missing += r.expected_hits - std::min(r.expected_hits, r.hits);
  }
  report->AtMost(kExact, "wrong_values", verified ? static_cast<double>(wrong) : std::nan(""), 0);
  report->AtMost(kExact, "missing_values", missing, 0);
}

// The targets of EMS over TCP on one connection.
void JudgeGates(const std::vector<SectionResult>& results, Report* report) {
  const auto ratio = [&](Section section, uint64_t bytes, bool throughput) {
    const SectionResult* r = FindResult(results, section, bytes);
    if (r == nullptr) return std::nan("");
    return throughput ? r->throughput_vs_raw() : r->p50_vs_raw();
  };
  report->AtLeast(kTimed, "get_1MiB_vs_raw", ratio(Section::kLoad, kMiB, true), kGet1MiBMin);
  report->AtLeast(kTimed, "put_1MiB_vs_raw", ratio(Section::kStore, kMiB, true), kPut1MiBMin);
  report->AtMost(kTimed, "get_64KiB_p50_vs_raw", ratio(Section::kLoad, 64 * kKiB, false),
                 kGet64KiBMax);
  report->AtMost(kTimed, "get_4KiB_p50_vs_raw", ratio(Section::kLoad, 4 * kKiB, false),
                 kGet4KiBMax);
}

void JudgeExists(const StoreBench::ExistsTimes& times, size_t servers, Report* report) {
  report->Print(fmt::format("MultiExists of {} keys over {} servers: {} ms; one Exists: {} ms\n",
                            kExistsKeys, servers, FormatMs(times.multi_ms),
                            FormatMs(times.single_ms)));
  if (servers < kMeantServers) {
    report->Print(
        fmt::format("the MultiExists figure is stated for {} servers, here are {}: not judged\n",
                    kMeantServers, servers));
  }
  if (times.found < kExistsKeys) {
    report->Fail(fmt::format("MultiExists found {} of {} stored keys", times.found, kExistsKeys));
  }
  report->json()["multi_exists"] = {{"keys", kExistsKeys},
                                    {"servers", servers},
                                    {"multi_ms", times.multi_ms},
                                    {"single_ms", times.single_ms}};
  report->AtMost(kTimed, "multi_exists_1000_keys_ms",
                 servers < kMeantServers ? std::nan("") : times.multi_ms, 3 * times.single_ms + 1);
}

}  // namespace ems::bench
