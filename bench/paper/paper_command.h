#pragma once
// `ems-bench paper`: the figures and tables of the papers beside those of the cost model. Needs no
// cluster, and no time passes: the same figures on every machine.
#include <vector>

#include "bench/paper/paper_row.h"
#include "pdc/cost_model/hardware.h"

namespace ems::bench {

// All that the command prints, in its order. Cost: about a second.
std::vector<PaperSection> AllPaperSections(const pdc::CostConstants& constants);

}  // namespace ems::bench
