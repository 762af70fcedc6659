#include "bench/paper/paper_trace.h"

#include <algorithm>
#include <utility>

namespace ems::bench {
namespace {

constexpr int kNpus = 384, kNpusPerPrefill = 16;

uint64_t NamesIn(const Trace& trace) {
  uint64_t most = 0;
  for (const TraceRequest& r : trace.requests)
    for (const uint64_t block : r.blocks) most = std::max(most, block);
  return most + 1;
}

std::vector<pdc::SimulatedRequest> Requests(const Trace& trace, const TraceScenario& scenario) {
  std::vector<pdc::SimulatedRequest> requests;
  requests.reserve(trace.requests.size() * static_cast<size_t>(scenario.repeat));
  const uint64_t names = NamesIn(trace);
  const double span_s = static_cast<double>(trace.requests.back().timestamp_ms) * 1e-3 + 1;
  for (int round = 0; round < scenario.repeat; ++round) {
    for (const TraceRequest& from : trace.requests) {
      pdc::SimulatedRequest r;
      r.arrival_s =
          (round * span_s + static_cast<double>(from.timestamp_ms) * 1e-3) / scenario.speedup;
      r.input_tokens = from.input_tokens;
      r.output_tokens = std::max<uint64_t>(from.output_tokens, 1);
      r.blocks = from.blocks;
      for (uint64_t& block : r.blocks) block += static_cast<uint64_t>(round) * names;
      requests.push_back(std::move(r));
    }
  }
  return requests;
}

}  // namespace

double TraceOutcome::hit_rate() const {
  return result.input_tokens == 0
             ? 0
             : static_cast<double>(result.cached_tokens) / static_cast<double>(result.input_tokens);
}

double TraceOutcome::prefill_busy() const {
  const double all = result.end_s * prefill_instances;
  return all > 0 ? result.prefill_busy_s / all : 0;
}

Result<std::vector<TraceOutcome>> ReplayInVirtualTime(const Trace& trace,
                                                      const TraceScenario& scenario,
                                                      const pdc::CostConstants& constants) {
  const int npus = scenario.prefill_instances * kNpusPerPrefill + scenario.decode_npus;
  if (scenario.prefill_instances < 1 || scenario.decode_npus < 1 || npus > kNpus) {
    return Error(StatusCode::kInvalidArgument,
                 "{} prefill instances of {} NPUs and {} for decode are {}; there are {}",
                 scenario.prefill_instances, kNpusPerPrefill, scenario.decode_npus, npus, kNpus);
  }
  if (trace.requests.empty() || scenario.repeat < 1 || scenario.speedup <= 0)
    return Error(StatusCode::kInvalidArgument, "nothing to replay");
  const std::vector<pdc::SimulatedRequest> requests = Requests(trace, scenario);
  pdc::SimulatorOptions options;
  options.constants = constants;
  options.prefill_instances = scenario.prefill_instances;
  options.decode_dies = scenario.decode_npus * constants.hardware.dies_per_npu;
  options.decode_batch_max = 64;
  options.named_block_tokens = kTraceBlockTokens;
  const double block_gb =
      static_cast<double>(kTraceBlockTokens) * constants.model.kv_bytes_per_token * 1e-9;
  const size_t pool_blocks = static_cast<size_t>(scenario.pool_gb / block_gb);
  std::vector<TraceOutcome> outcomes;
  const auto run = [&](const char* name, size_t blocks, pdc::CachePlane plane) {
    options.pool_blocks = blocks;
    options.prefill.plane = plane;
    outcomes.push_back({.name = name,
                        .result = Simulate(options, requests),
                        .span_s = requests.back().arrival_s,
                        .prefill_instances = scenario.prefill_instances});
  };
  run("no EMS", 0, pdc::CachePlane::kUb);
  run("EMS over VPC", pool_blocks, pdc::CachePlane::kVpc);
  run("EMS over UB", pool_blocks, pdc::CachePlane::kUb);
  return outcomes;
}

}  // namespace ems::bench
