#pragma once
// Results of a comparison: for each subject, operation, size and number of threads the figures of
// every round, so that ratios are taken between rounds that ran right after each other.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/latency_recorder.h"
#include "bench/sides/subject.h"

namespace ems::bench {

// One round.
struct RoundFigures {
  double gb_per_second = 0;   // 0: moves no bytes
  double ops_per_second = 0;  // values or keys, not calls
  double p50_us = 0;          // of a call
  // CPU seconds for each 1e9 bytes; 0: moves no bytes
  double client_cpu_per_gb = 0;
  double server_cpu_per_gb = 0;
  double cpu_per_gb() const { return client_cpu_per_gb + server_cpu_per_gb; }
};
using Figure = double (*)(const RoundFigures&);
inline double Gbps(const RoundFigures& r) { return r.gb_per_second; }
inline double Ops(const RoundFigures& r) { return r.ops_per_second; }
inline double P50(const RoundFigures& r) { return r.p50_us; }
inline double ClientCpu(const RoundFigures& r) { return r.client_cpu_per_gb; }
inline double ServerCpu(const RoundFigures& r) { return r.server_cpu_per_gb; }
inline double Cpu(const RoundFigures& r) { return r.cpu_per_gb(); }

struct TrialResult {
  std::string subject;  // "EMS", "memcpy", "redis unix"
  SideOp op = SideOp::kGet;
  uint64_t value_bytes = 0;
  uint32_t threads = 1;
  uint64_t batch = 1;  // values a call
  std::vector<RoundFigures> rounds;
  LatencyRecorder calls;                         // of all rounds
  double one_sided_share = 0;                    // of the keys read; 0 for Puts
  std::vector<double> All(Figure figure) const;  // a value a round
  double MedianOf(Figure figure) const;
};

struct StormResult {
  uint64_t value_bytes = 0;
  double reads_per_second = 0;
  double server_cores = 0;  // CPU time of all servers / time
};

// A whole run. Threading: one thread.
class SideResults final {
 public:
  std::vector<TrialResult> trials;
  std::vector<StormResult> storms;
  // What was to be measured and could not be, and why: "redis unix: redis-server is not installed".
  std::vector<std::string> missing;

  // Null when it was not measured. The pointer lives until trials changes.
  const TrialResult* Find(const std::string& subject, SideOp op, uint64_t value_bytes,
                          uint32_t threads) const;
  std::vector<uint64_t> Sizes() const;        // in the order of measurement
  std::vector<std::string> Subjects() const;  // the same
};

}  // namespace ems::bench
