// What must hold: the table "avx2" computes exact results exactly, whatever number of rows, columns
// and elements its registers of 8 floats are filled with.
#include "tests/pdc/engine/internal/kernel_table_checks.h"

namespace ems::pdc::internal {
namespace {

class KernelsAvx2Test : public KernelTableTest {
 protected:
  KernelsAvx2Test() : KernelTableTest("avx2", 8, 6) {}
};

TEST_F(KernelsAvx2Test, RegistersHaveItsWidth) { ExpectRegistersOfItsWidth(); }
TEST_F(KernelsAvx2Test, ProductsOfWholeNumbersAreExact) { ExpectExactProducts(); }
TEST_F(KernelsAvx2Test, TailsAreWholeAndNothingIsTouchedBehindThem) { ExpectWholeTails(); }
TEST_F(KernelsAvx2Test, TilesOfAnyWidthAreTransposed) { ExpectTransposedOfAnyWidth(); }
TEST_F(KernelsAvx2Test, FunctionsOfElementsAreExactWhereTheirResultsAre) { ExpectExactElements(); }
TEST_F(KernelsAvx2Test, AttentionToEqualKeysIsTheMeanOfTheirValues) { ExpectExactAttention(); }

}  // namespace
}  // namespace ems::pdc::internal
