#pragma once
// What must hold of the fairness bench: small calls stay quick, and not because the bulk beside
// them stands still.
#include "bench/fairness/fairness_bench.h"
#include "bench/harness/report.h"

namespace ems::bench {

// In 1e9 bytes a second, while Gets were measured.
struct BulkRates {
  double read_gbps = 0, written_gbps = 0;
};
BulkRates RatesOf(const FairnessResult& result);

void CheckFairness(const FairnessResult& result, Report* report);

}  // namespace ems::bench
