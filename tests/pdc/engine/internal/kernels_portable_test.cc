// What must hold: the table "portable" computes exact results exactly, whatever number of rows,
// columns and elements its registers of 4 floats are filled with.
#include "tests/pdc/engine/internal/kernel_table_checks.h"

namespace ems::pdc::internal {
namespace {

class KernelsPortableTest : public KernelTableTest {
 protected:
  KernelsPortableTest() : KernelTableTest("portable", 4, 6) {}
};

TEST_F(KernelsPortableTest, RegistersHaveItsWidth) { ExpectRegistersOfItsWidth(); }
TEST_F(KernelsPortableTest, ProductsOfWholeNumbersAreExact) { ExpectExactProducts(); }
TEST_F(KernelsPortableTest, TailsAreWholeAndNothingIsTouchedBehindThem) { ExpectWholeTails(); }
TEST_F(KernelsPortableTest, TilesOfAnyWidthAreTransposed) { ExpectTransposedOfAnyWidth(); }
TEST_F(KernelsPortableTest, FunctionsOfElementsAreExactWhereTheirResultsAre) {
  ExpectExactElements();
}
TEST_F(KernelsPortableTest, AttentionToEqualKeysIsTheMeanOfTheirValues) { ExpectExactAttention(); }

}  // namespace
}  // namespace ems::pdc::internal
