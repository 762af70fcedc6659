// What must hold: the peer is measured where it can run.
#include "bench/engine/eigen_product.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

TEST(EigenProductTest, HasARateOrCannotRun) {
  const double rate = EigenProductRate(8, 32, 32, std::chrono::milliseconds(4));
  EXPECT_GE(rate, 0);
#ifdef __x86_64__
  EXPECT_EQ(rate > 0, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#endif
}

}  // namespace
}  // namespace ems::bench
