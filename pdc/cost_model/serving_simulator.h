#pragma once
// Serves a list of requests in virtual time: prefill instances, hand-off, one decode instance. The
// schedulers are those of the real workers (PrefillScheduler, DecodeBalancer); only the
// time that work takes comes from the cost model.
//
// Invariants: each request is served once or refused once; no time runs backwards; the same input
// gives the same result. Cost: O(log n + groups) a request and a run of equal iterations; a day of
// 300,000 requests on 384 NPUs takes seconds. Threading: one thread.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pdc/cost_model/decode_cost.h"
#include "pdc/cost_model/prefill_cost.h"

namespace ems::pdc {

struct SimulatedRequest {
  double arrival_s = 0;  // never before the request in front
  uint64_t input_tokens = 1;
  uint64_t output_tokens = 1;  // at least 1; the first one is prefill's
  // Names of the prompt's blocks; empty: `cached_tokens` are found in the pool in any case.
  std::vector<uint64_t> blocks;
  uint64_t cached_tokens = 0;
};

struct SimulatorOptions {
  PrefillInstance prefill;
  int prefill_instances = 6;
  uint64_t prefill_new_tokens_max = 32'768;  // a group and step
  int decode_dies = 320;
  uint64_t decode_batch_max = 48;           // requests a die
  uint64_t decode_kv_tokens_max = 500'000;  // a die
  bool mtp = true;
  double mtp_acceptance = 0.70;
  Microbatching decode_microbatching = Microbatching::kFaster;
  size_t pool_blocks = 0;             // of block names; 0: no pool
  uint64_t named_block_tokens = 512;  // tokens of a named block
  CostConstants constants;
};

struct ServedRequest {
  double ttft_s = 0;
  double tpot_s = 0;  // 0 when there was one token
  double end_s = 0;
  uint64_t cached_tokens = 0;
  bool refused = false;  // its KV is larger than a die's
};

struct SimulationResult {
  std::vector<ServedRequest> requests;  // in the order of the input
  double end_s = 0;
  uint64_t served = 0, refused = 0;
  uint64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;  // of served requests
  uint64_t prefill_steps = 0, decode_iterations = 0;
  double prefill_busy_s = 0;  // summed over instances
  double decode_busy_s = 0;
  double decode_request_seconds = 0;  // requests in a batch · time
  uint64_t hand_offs_held_back = 0;   // no decode group had room at first
  double mean_ttft_s() const;
  double mean_tpot_s() const;  // of requests with more than one token
  double ttft_quantile_s(double quantile) const;
  double tpot_quantile_s(double quantile) const;
};

// Aborts on options out of range. Requests with more cached than input tokens are taken to miss one
// token.
SimulationResult Simulate(const SimulatorOptions& options,
                          std::span<const SimulatedRequest> requests);

}  // namespace ems::pdc
