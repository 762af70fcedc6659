// What must hold: the table "avx512" computes exact results exactly, whatever number of rows,
// columns and elements its registers of 16 floats are filled with.
#include "tests/pdc/engine/internal/kernel_table_checks.h"

namespace ems::pdc::internal {
namespace {

class KernelsAvx512Test : public KernelTableTest {
 protected:
  KernelsAvx512Test() : KernelTableTest("avx512", 16, 12) {}
};

TEST_F(KernelsAvx512Test, RegistersHaveItsWidth) { ExpectRegistersOfItsWidth(); }
TEST_F(KernelsAvx512Test, ProductsOfWholeNumbersAreExact) { ExpectExactProducts(); }
TEST_F(KernelsAvx512Test, TailsAreWholeAndNothingIsTouchedBehindThem) { ExpectWholeTails(); }
TEST_F(KernelsAvx512Test, TilesOfAnyWidthAreTransposed) { ExpectTransposedOfAnyWidth(); }
TEST_F(KernelsAvx512Test, FunctionsOfElementsAreExactWhereTheirResultsAre) {
  ExpectExactElements();
}
TEST_F(KernelsAvx512Test, AttentionToEqualKeysIsTheMeanOfTheirValues) { ExpectExactAttention(); }

}  // namespace
}  // namespace ems::pdc::internal
