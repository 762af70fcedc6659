#pragma once
// Prefill figures of the papers from the cost model: Table 3, the microbatch ablation, Fig. 23.
#include <vector>

#include "bench/paper/paper_row.h"
#include "pdc/cost_model/prefill_cost.h"

namespace ems::bench {

// 4K prompts, 16K tokens an NPU (CM §5.2, §5.4).
struct PrefillExperiment {
  double prompt_tokens = 4096;
  double tokens_per_npu = 16'384;
  double reuse = 0;  // share of a prompt that is in the pool; rounded down to whole blocks
  bool perfect_eplb = false;
  bool microbatching = true;
  pdc::CachePlane plane = pdc::CachePlane::kUb;
};

struct PrefillFigure {
  double ttft_ms = 0;
  double layer_us = 0;
  double tokens_per_s_per_npu = 0;
};

PrefillFigure RunPrefill(const pdc::CostConstants& constants, const PrefillExperiment& experiment);

PaperSection Table3(const pdc::CostConstants& constants);
PaperSection PrefillMicrobatching(const pdc::CostConstants& constants);
PaperSection Fig23(const pdc::CostConstants& constants);
// One reuse rate: throughput over that without EMS, and TTFT.
struct ReusePoint {
  double reuse = 0;
  double ub_throughput = 1, ub_ttft_ms = 0;
  double vpc_throughput = 1, vpc_ttft_ms = 0;
};
// The lines of Fig. 23a and 23b, from no reuse on.
std::vector<ReusePoint> Fig23Points(const pdc::CostConstants& constants);

}  // namespace ems::bench
