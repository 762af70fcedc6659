// What must hold: whole pages, zero, writable, given back once.
#include "bench/harness/page_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ems::bench {
namespace {

TEST(PageBufferTest, BytesAreAlignedZeroAndWritable) {
  auto buffer = PageBuffer::Make(3 * kMiB + 1);
  ASSERT_TRUE(buffer.ok()) << ToString(buffer.status());
  const MutableBytes bytes = buffer->bytes();
  ASSERT_EQ(bytes.size(), 3 * kMiB + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 4096, 0U);
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; }));
  bytes.back() = std::byte{1};
}

TEST(PageBufferTest, MovingLeavesNothingBehind) {
  PageBuffer first = PageBuffer::Make(4096).value();
  std::byte* const data = first.bytes().data();
  PageBuffer second = PageBuffer::Make(8192).value();
  second = std::move(first);
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): that is the point
}

TEST(PageBufferTest, NothingAndTooMuchAreErrors) {
  EXPECT_EQ(PageBuffer::Make(0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PageBuffer::Make(uint64_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ems::bench
