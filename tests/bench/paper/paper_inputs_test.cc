// Inputs have to come back as they went in: within 3 %, most of them exactly.
#include "bench/paper/paper_inputs.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(PaperInputsTest, ComeBackAsTheyWentIn) {
  const pdc::CostConstants constants;
  for (const PaperSection& section :
       {Table2(), OperatorTables(constants), ModelShapes(constants), OtherArithmetic(constants)}) {
    EXPECT_FALSE(section.rows.empty());
    for (const PaperRow& row : section.rows) EXPECT_LE(row.off_percent(), 3) << row.id;
  }
}

}  // namespace
}  // namespace ems::bench
