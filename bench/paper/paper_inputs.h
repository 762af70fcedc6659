#pragma once
// Figures of the papers that need no simulation: Table 2 (by model_cost.h), the operators of
// Tables 7 to 10, model shapes, and arithmetic that the papers do themselves.
#include "bench/paper/paper_row.h"
#include "pdc/cost_model/operators.h"

namespace ems::bench {

PaperSection Table2();
PaperSection OperatorTables(const pdc::CostConstants& constants);
PaperSection ModelShapes(const pdc::CostConstants& constants);
PaperSection OtherArithmetic(const pdc::CostConstants& constants);

}  // namespace ems::bench
