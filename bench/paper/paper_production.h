#pragma once
// XDS §7.2: the production set-up, simulated with the real schedulers.
#include "bench/paper/paper_row.h"
#include "pdc/cost_model/serving_simulator.h"

namespace ems::bench {

struct ProductionPoint {
  double requests_per_die = 0;  // the most that keep the SLA
  double requests_per_s = 0;    // the rate that keeps that many in the batch
  double ttft_ms = 0;           // simulated, mean
  double tpot_ms = 0;           // simulated, mean
};

// 4 prefill instances (EP32), one of decode (EP128); prompts of 13K with 56.3 % hits, outputs of
// 2.1K, Poisson arrivals from a fixed seed, at the rate whose batch just keeps `tpot_sla_ms`.
// Cost: about a second.
ProductionPoint SimulateProduction(const pdc::CostConstants& constants, double tpot_sla_ms);

PaperSection XdsProduction(const pdc::CostConstants& constants);

}  // namespace ems::bench
