#include "ems_context/internal/tensor_extent.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ems::context {
namespace {

// Marks each byte of the tensor; false when one was marked before.
bool Mark(const KvTensor& t, const std::byte* origin, std::vector<bool>* marks) {
  bool fresh = true;
  for (uint64_t block = 0; block < t.blocks; ++block)
    for (uint32_t token = 0; token < t.block_tokens; ++token)
      for (uint32_t head = 0; head < t.heads; ++head)
        for (uint64_t byte = 0; byte < HeadBytes(t); ++byte) {
          const uint64_t at = static_cast<uint64_t>(t.data - origin) + block * t.block_stride +
                              token * t.token_stride + head * t.head_stride + byte;
          if ((*marks)[at]) fresh = false;
          (*marks)[at] = true;
        }
  return fresh;
}

class TensorExtentTest : public ::testing::Test {
 protected:
  // A tensor of bytes somewhere in the arena, with random nesting strides.
  KvTensor RandomTensor() {
    KvTensor t{.dtype = KvDtype::kUint8,
               .blocks = 1 + Below(4),
               .block_tokens = 1 + Below(4),
               .heads = 1 + Below(3),
               .head_size = 1 + Below(4)};
    t.data = arena_.data() + Below(40);
    t.bytes = static_cast<uint64_t>(arena_.data() + arena_.size() - t.data);
    if (Below(2) == 0) t.order = KvOrder::kHeadsFirst;
    if (Below(2) == 0) t.head_stride = uint64_t{t.head_size} * (1 + Below(3));
    if (Below(2) == 0) t.token_stride = Below(24);
    if (Below(2) == 0) t.block_stride = Below(64);
    FillStrides(&t);
    return t;
  }
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

  std::mt19937_64 random_{3};
  std::vector<std::byte> arena_{4096};
};

TEST_F(TensorExtentTest, WhatIsAcceptedHasNoByteTwiceAndTheAnswerAboutTwoIsExact) {
  size_t accepted = 0, apart = 0, sharing = 0;
  for (int round = 0; round < 20'000; ++round) {
    const KvTensor a = RandomTensor(), b = RandomTensor();
    const auto of_a = ExtentOf(a), of_b = ExtentOf(b);
    if (!of_a.ok() || !of_b.ok()) continue;
    ++accepted;
    std::vector<bool> marks(arena_.size());
    ASSERT_TRUE(Mark(a, arena_.data(), &marks));
    const bool share = !Mark(b, arena_.data(), &marks);
    ASSERT_EQ(ShareAByte(*of_a, *of_b), share) << round;
    ASSERT_EQ(ShareAByte(*of_b, *of_a), share) << round;
    ++(share ? sharing : apart);
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(apart, 100u);
  EXPECT_GT(sharing, 100u);
}

TEST_F(TensorExtentTest, DenseStridesFollowTheOrder) {
  KvTensor t{.blocks = 2, .block_tokens = 16, .heads = 4, .head_size = 8};
  FillStrides(&t);
  EXPECT_EQ(t.head_stride, 16u);
  EXPECT_EQ(t.token_stride, 64u);
  EXPECT_EQ(t.block_stride, 1024u);
  t.order = KvOrder::kHeadsFirst;
  t.head_stride = t.token_stride = t.block_stride = 0;
  FillStrides(&t);
  EXPECT_EQ(t.token_stride, 16u);
  EXPECT_EQ(t.head_stride, 256u);
  EXPECT_EQ(t.block_stride, 1024u);
}

TEST_F(TensorExtentTest, TheLastByteMustBeWithinWhatIsGiven) {
  KvTensor t{.blocks = 2, .block_tokens = 2, .heads = 1, .head_size = 2};
  t.data = arena_.data();
  t.token_stride = 100;
  t.block_stride = 1000;
  t.bytes = 1104;
  EXPECT_TRUE(ExtentOf(t).ok());
  t.bytes = 1103;
  EXPECT_EQ(ExtentOf(t).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(TensorExtentTest, NothingOverflows) {
  KvTensor t{.blocks = UINT64_MAX,
             .block_tokens = UINT32_MAX,
             .heads = UINT32_MAX,
             .head_size = UINT32_MAX};
  t.data = arena_.data();
  t.bytes = UINT64_MAX;
  FillStrides(&t);
  EXPECT_FALSE(ExtentOf(t).ok());
}

}  // namespace
}  // namespace ems::context
