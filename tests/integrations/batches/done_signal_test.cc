#include "integrations/batches/done_signal.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace ems::batches {
namespace {

bool IsReadable(const DoneSignal& signal) {
  pollfd waiting{.fd = signal.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) == 1;
}

TEST(DoneSignalTest, ItIsReadableFromSetToResetHoweverOftenItWasSet) {
  const auto signal = DoneSignal::Open();
  ASSERT_TRUE(signal.ok()) << signal.status();
  EXPECT_FALSE(IsReadable(*signal));
  signal->Reset();  // of one that is not set: does not block
  for (int i = 0; i < 3; ++i) signal->Set();
  EXPECT_TRUE(IsReadable(*signal));
  signal->Reset();
  EXPECT_FALSE(IsReadable(*signal));
  signal->Set();
  EXPECT_TRUE(IsReadable(*signal));
}

}  // namespace
}  // namespace ems::batches
