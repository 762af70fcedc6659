// What must hold: rates are of the right size and refuse kernels that are not there; operations
// grow as the model's description says.
#include "pdc/engine/arithmetic_rates.h"

#include <gtest/gtest.h>

#include "pdc/engine/tensor_plan.h"

namespace ems::pdc {
namespace {

TEST(ArithmeticRatesTest, EveryTableIsMeasured) {
  for (const std::string& name : KernelNames()) {
    for (const WeightDtype weights : {WeightDtype::kF32, WeightDtype::kBf16, WeightDtype::kInt8}) {
      const auto rates =
          MeasureArithmetic(name, {.rows = 16, .k = 64, .columns = 64, .weights = weights},
                            std::chrono::milliseconds(4));
      ASSERT_TRUE(rates.ok()) << rates.status();
      EXPECT_GT(rates->peak, 0);
      EXPECT_GT(rates->product, 0);
    }
  }
  EXPECT_EQ(MeasureArithmetic("abacus", {}, Duration(1)).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ArithmeticRatesTest, OperationsAddUp) {
  const ModelConfig config = *PresetConfig("base");
  const double whole = PrefillOperations(config, 0, 1000);
  const double head = 2.0 * config.vocab * config.hidden;
  const double parts =
      PrefillOperations(config, 0, 400) + PrefillOperations(config, 400, 600) - head;
  EXPECT_NEAR(parts / whole, 1, 1e-9);
  EXPECT_GT(PrefillOperations(config, 4000, 100), PrefillOperations(config, 0, 100));
  EXPECT_GT(PrefillOperations(config, 0, 1), 1.9 * static_cast<double>(ActiveParametersOf(config)));
}

}  // namespace
}  // namespace ems::pdc
