#pragma once
// `ems-bench paper`: the figures and tables of the papers beside those of the cost model. Needs no
// cluster, and no time passes: the same figures on every machine.
#include <functional>
#include <vector>

#include "bench/paper_row.h"
#include "pdc/cost_model/hardware.h"

namespace CLI {
class App;
}

namespace ems::bench {

// All that the command prints, in its order. Cost: about a second.
std::vector<PaperSection> AllPaperSections(const pdc::CostConstants& constants);

// Adds the subcommand to `app`; *run is set to what does the work, returning the exit code, when it
// has been chosen.
void AddPaperCommand(CLI::App* app, std::function<int()>* run);

}  // namespace ems::bench
