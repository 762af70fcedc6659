#pragma once
// Made-up results of `ems-bench local` for tests of what is said about them.
#include <string>
#include <vector>

#include "bench/local/local_gates.h"
#include "bench/sides/side_result.h"

namespace ems::bench::test {

inline void AddTrial(SideResults* results, const std::string& subject, SideOp op, uint64_t bytes,
                     uint32_t threads, RoundFigures figures) {
  TrialResult trial;
  trial.subject = subject;
  trial.op = op;
  trial.value_bytes = bytes;
  trial.threads = threads;
  trial.one_sided_share = subject == "EMS" ? 1 : 0;
  trial.rounds.assign(5, figures);
  trial.calls.Record(Duration(static_cast<int64_t>(figures.p50_us * 1e3)));
  results->trials.push_back(std::move(trial));
}

// A run in which EMS meets every target: EMS's copy 10 GB/s, memcpy 7, EMS's Gets 9.5 and 8.5, its
// Puts 8; peers 4 and 3 GB/s at twice the CPU.
inline SideResults GoodResults() {
  SideResults results;
  for (const uint64_t bytes : kLocalGateSizes) {
    for (const uint32_t threads : {1U, 2U}) {
      const double n = threads;
      const auto add = [&](const char* name, SideOp op, double gbps, double p50, double cpu) {
        AddTrial(&results, name, op, bytes, threads,
                 {.gb_per_second = gbps * n,
                  .ops_per_second = 1e6,
                  .p50_us = p50,
                  .client_cpu_per_gb = cpu,
                  .server_cpu_per_gb = 0});
      };
      add("memcpy", SideOp::kGet, 7, 1, 0.1);
      add("EMS's copy", SideOp::kGet, 10, 1, 0.1);
      add("EMS", SideOp::kGet, 9.5, 1.2, 0.1);
      add("EMS", SideOp::kGetChecked, 8.5, 1.5, 0.1);
      add("EMS", SideOp::kGetView, 0, 0.4, 0);
      add("EMS", SideOp::kLookup, 0, 100, 0);
      for (const SideOp op : {SideOp::kPut, SideOp::kPutBatch, SideOp::kPutOrdinary}) {
        add("EMS", op, 8, 20, 0.2);
      }
      for (const SideOp op : {SideOp::kGet, SideOp::kPutOrdinary}) {
        add("redis unix", op, 3, 20, 0.6);
        add("memcached unix", op, 4, 15, 0.5);
      }
    }
  }
  results.storms.push_back({.value_bytes = 4096, .reads_per_second = 1e6, .server_cores = 0.001});
  return results;
}

}  // namespace ems::bench::test
