// What must hold: bytes really move both ways on either transport, and the child is gone with its
// owner.
#include "bench/harness/raw_socket.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace ems::bench {
namespace {

class RawSocketTest : public ::testing::TestWithParam<RawTransport> {};

TEST_P(RawSocketTest, PutBytesComeBackFromTheSameBuffer) {
  auto raw = RawSocket::Start(GetParam());
  ASSERT_TRUE(raw.ok()) << ToString(raw.status());
  for (const uint64_t bytes : {uint64_t{1}, 4 * kKiB, 3 * kMiB}) {
    ASSERT_TRUE((*raw)->Prepare(bytes, 2).ok());
    const std::vector<std::byte> one(bytes, std::byte{1}), two(bytes, std::byte{2});
    std::vector<std::byte> into(bytes);
    ASSERT_TRUE((*raw)->Put(0, one).ok());
    ASSERT_TRUE((*raw)->Put(1, two).ok());
    ASSERT_TRUE((*raw)->Get(0, into).ok());
    EXPECT_EQ(into, one);
    ASSERT_TRUE((*raw)->Get(1, into).ok());
    EXPECT_EQ(into, two);
  }
}

TEST_P(RawSocketTest, ChildEndsWithItsOwner) {
  auto first = RawSocket::Start(GetParam());
  auto second = RawSocket::Start(GetParam());  // must not keep the first one's socket open
  ASSERT_TRUE(first.ok() && second.ok());
  const pid_t child = (*first)->child();
  EXPECT_EQ(kill(child, 0), 0);
  first->reset();
  EXPECT_EQ(kill(child, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_P(RawSocketTest, GetWithoutPrepareAndEmptyBuffersAreErrors) {
  auto raw = RawSocket::Start(GetParam());
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ((*raw)->Prepare(0, 1).code(), StatusCode::kInvalidArgument);
  std::vector<std::byte> into(16);
  EXPECT_EQ((*raw)->Get(0, into).code(), StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Transports, RawSocketTest,
                         ::testing::Values(RawTransport::kTcp, RawTransport::kUnix));

}  // namespace
}  // namespace ems::bench
