#pragma once
// Decode figures of the papers from the cost model: Tables 4 and 5, the microbatch and MTP
// ablations of CM, and the set-ups of XDS §7.1.
#include "bench/paper/paper_row.h"
#include "pdc/cost_model/decode_cost.h"

namespace ems::bench {

PaperSection Tables4And5(const pdc::CostConstants& constants);
PaperSection DecodeMicrobatching(const pdc::CostConstants& constants);
PaperSection MtpAblation(const pdc::CostConstants& constants);
PaperSection XdsPeak(const pdc::CostConstants& constants);
PaperSection XdsDisaggregated(const pdc::CostConstants& constants);

}  // namespace ems::bench
