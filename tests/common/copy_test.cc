// What must hold: every byte arrives, whatever the way, length and alignment, none beside them is
// touched, and the checksum is that of what arrived.
#include "common/copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/thread_pool.h"
#include "tests/common/random_bytes.h"

namespace ems {
namespace {

// Copies between buffers shifted by `from_shift` and `into_shift` and looks at everything.
void CheckCopy(size_t size, size_t from_shift, size_t into_shift, bool hashed) {
  SCOPED_TRACE(::testing::Message() << size << " bytes, " << from_shift << " to " << into_shift);
  constexpr size_t kGuard = 64;
  constexpr std::byte kMark{0xa5};
  const std::vector<std::byte> source = RandomBytes(size + from_shift, 7);
  std::vector<std::byte> target(size + into_shift + kGuard, kMark);
  PieceHasher hasher;
  hasher.Start({});
  const ConstBytes from = std::span(source).subspan(from_shift);
  const MutableBytes into = std::span(target).subspan(into_shift, size);
  CopyValue(into, from.data(), hashed ? &hasher : nullptr);
  EXPECT_TRUE(std::equal(into.begin(), into.end(), from.begin()));
  for (size_t i = 0; i < into_shift; ++i) ASSERT_EQ(target[i], kMark) << "before, " << i;
  for (size_t i = into_shift + size; i < target.size(); ++i) ASSERT_EQ(target[i], kMark) << i;
  if (hashed) {
    EXPECT_EQ(hasher.Finish(), Checksum(from));
  }
}

TEST(CopyValueTest, EveryByteArrivesAtAnyLengthAndAlignment) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{4096}, size_t{65537}}) {
    for (const size_t shift : {0u, 1u, 16u, 63u}) {
      CheckCopy(size, 0, shift, false);
      CheckCopy(size, shift, 0, true);
    }
  }
}

// Large ones take both ways in turn, so each case runs often enough to take both.
TEST(CopyValueTest, LargeCopiesArriveByEitherWay) {
  for (const size_t size :
       {kLargeCopyBytes, kLargeCopyBytes + 1, kLargeCopyBytes + 4097, size_t{3 * kMiB + 12345}}) {
    for (const size_t into_shift : {0u, 1u, 15u, 16u, 33u}) {
      for (const size_t from_shift : {0u, 7u}) {
        for (int again = 0; again < 3; ++again) {
          CheckCopy(size, from_shift, into_shift, again % 2 == 0);
          CheckCopy(size, from_shift, into_shift, again % 2 != 0);
        }
      }
    }
  }
}

TEST(CopyValueTest, ThreadsCopyAtTheSameTime) {
  const std::vector<std::byte> source = RandomBytes(kMiB, 3);
  std::vector<Thread> threads;
  std::atomic<int> right{0};
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("copier", [&] {
      std::vector<std::byte> target(source.size());
      PieceHasher hasher;
      for (int round = 0; round < 40; ++round) {
        hasher.Start({});
        std::fill(target.begin(), target.end(), std::byte{0});
        CopyValue(target, source.data(), round % 2 == 0 ? &hasher : nullptr);
        right += target == source ? 1 : 0;
      }
    });
  }
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(right, 160);
}

}  // namespace
}  // namespace ems
