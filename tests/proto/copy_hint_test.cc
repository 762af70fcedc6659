// What must hold: what is packed comes out again, and what a newer server may say beyond it is
// taken for nothing.
#include "proto/copy_hint.h"

#include <gtest/gtest.h>

namespace ems::wire {
namespace {

TEST(CopyHintTest, EveryHintComesOutAsItWentIn) {
  for (uint8_t holders = 1; holders < 8; ++holders) {
    for (uint32_t seconds = 1; seconds <= kCopySecondsMax; ++seconds) {
      const CopyHint hint{.holders = holders, .seconds = seconds};
      EXPECT_NE(hint.Pack(), 0);
      EXPECT_EQ(CopyHint::Unpack(hint.Pack()), hint);
    }
  }
}

TEST(CopyHintTest, LongerTimesAreCutAndNoCopiesOrNoTimeAreNoHint) {
  EXPECT_EQ(CopyHint::Unpack(CopyHint{.holders = 5, .seconds = 300}.Pack()).seconds,
            kCopySecondsMax);
  EXPECT_EQ((CopyHint{.holders = 5, .seconds = 0}.Pack()), 0);
  EXPECT_EQ((CopyHint{.holders = 0, .seconds = 9}.Pack()), 0);
  EXPECT_EQ(CopyHint::Unpack(0), CopyHint());
  EXPECT_EQ(CopyHint::Unpack(7 << 5), CopyHint());
  EXPECT_EQ(CopyHint::Unpack(0x0100 | 7 << 5 | 9), CopyHint()) << "flags of another kind";
}

}  // namespace
}  // namespace ems::wire
