#include "bench/fairness/fairness_gates.h"

namespace ems::bench {
namespace {

constexpr double kGetRatioMax = 5;
constexpr double kPutRatioMax = 2;
// A tenth of what one io thread moves: whether it moves, not how fast.
constexpr double kBulkGbpsMin = 0.1;

}  // namespace

BulkRates RatesOf(const FairnessResult& result) {
  const auto gbps = [&](uint64_t bytes) {
    return static_cast<double>(bytes) / result.bulk_seconds / 1e9;
  };
  return {gbps(result.bulk_read_bytes), gbps(result.bulk_written_bytes)};
}

void CheckFairness(const FairnessResult& result, Report* report) {
  const BulkRates bulk = RatesOf(result);
  report->AtMost(kExact, "evicted_objects", result.evicted_objects, 0);
  report->AtMost(kTimed, "get_4KiB_p99_ratio", result.gets.p99_ratio(), kGetRatioMax);
  report->AtLeast(kTimed, "bulk_read_gbps", bulk.read_gbps, kBulkGbpsMin);
  report->AtLeast(kTimed, "bulk_written_gbps", bulk.written_gbps, kBulkGbpsMin);
  report->AtMost(kTimed, "put_1MiB_p99_ratio", result.puts.p99_ratio(), kPutRatioMax);
}

}  // namespace ems::bench
