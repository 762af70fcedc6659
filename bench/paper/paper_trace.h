#pragma once
// A recorded trace served in virtual time by a CloudMatrix384: without EMS, and with it over the
// VPC and the UB plane.
#include <string>
#include <vector>

#include "bench/trace/trace_reader.h"
#include "pdc/cost_model/serving_simulator.h"

namespace ems::bench {

struct TraceScenario {
  int repeat = 1;      // the trace this often in a row, with other prompts each time
  double speedup = 1;  // of arrivals
  int prefill_instances = 14;
  int decode_npus = 160;    // together with 14 · 16 NPUs: 384
  double pool_gb = 48'000;  // DRAM for KV; 1 TB a node
};

struct TraceOutcome {
  std::string name;  // "no EMS", "EMS over VPC", "EMS over UB"
  pdc::SimulationResult result;
  double span_s = 0;  // of arrivals
  double hit_rate() const;
  double prefill_busy() const;  // share of the instances' time
  int prefill_instances = 0;
};

// Errors: kInvalidArgument  the scenario needs more NPUs than 384, or has none of a kind
// Cost: about ten seconds for a million requests.
Result<std::vector<TraceOutcome>> ReplayInVirtualTime(const Trace& trace,
                                                      const TraceScenario& scenario,
                                                      const pdc::CostConstants& constants);

}  // namespace ems::bench
